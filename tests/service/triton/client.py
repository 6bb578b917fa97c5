"""Triton's own client: `python client.py TARGET MODEL TABLE_MODEL INPUTS`, which prints what it saw as JSON.

INPUTS is an archive with ``X``, and the columns ``income``, ``rate`` and ``city`` of the table.
"""

import json
import sys

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


def tensor(name, values):
    given = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
    given.set_data_from_numpy(values)
    return given


def outputs(result):
    return {
        one["name"]: {
            "datatype": one["datatype"],
            "shape": one["shape"],
            "bits": result.as_numpy(one["name"]).tobytes().hex() if one["datatype"] != "BYTES" else "",
            "values": [value.decode() for value in result.as_numpy(one["name"])] if one["datatype"] == "BYTES" else [],
        }
        for one in result.get_response(as_json=True)["outputs"]
    }


def refused(call, *arguments, **more):
    try:
        call(*arguments, **more)
    except InferenceServerException as error:
        return [error.status(), error.message()]
    return None


target, model, table_model, inputs = sys.argv[1:]
given = np.load(inputs)
client = triton.InferenceServerClient(target)
X = given["X"]
columns = [
    tensor("city", given["city"].astype(object)),
    tensor("rate", given["rate"]),
    tensor("income", given["income"]),
]
saw = {
    "live": client.is_server_live(),
    "ready": client.is_server_ready(),
    "server": client.get_server_metadata(as_json=True),
    "model_ready": client.is_model_ready(model),
    "other_ready": client.is_model_ready("no-such-model"),
    "metadata": client.get_model_metadata(model, as_json=True),
    "table_metadata": client.get_model_metadata(table_model, as_json=True),
    "answer": outputs(client.infer(model, [tensor("points", X)], request_id="seven")),
    "id": client.infer(model, [tensor("points", X)], request_id="seven").get_response().id,
    "label_only": list(
        outputs(client.infer(model, [tensor("points", X)], outputs=[triton.InferRequestedOutput("label")]))
    ),
    "table_answer": outputs(client.infer(table_model, columns)),
    "unknown_model": refused(client.infer, "no-such-model", [tensor("points", X)]),
    "unknown_input": refused(client.infer, model, [tensor("rows", X)]),
    "wrong_width": refused(client.infer, model, [tensor("points", X[:, :2])]),
    "other_project": refused(client.infer, "projects/UPPER/models/m", [tensor("points", X)]),
    "classification": refused(
        client.infer, model, [tensor("points", X)], outputs=[triton.InferRequestedOutput("label", class_count=3)]
    ),
}
print(json.dumps(saw))
