"""A tenant that sends everything the API accepts: `python hostile.py PORT TOKEN PROJECT SECONDS`.

It talks to loopback only, and stops by itself. The last line of its output says how often each attack was made, and
the results.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import numpy as np

from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2, points_pb2, suggestion_pb2
from homophily_client._pb.homophily_service_pb2_grpc import HomophilyServiceStub

MIB = 1 << 20
HOST = "127.0.0.1"
# How many tasks make each attack at a time. Attacks that only hold resources of the project are made by one task: more
# would keep the other attacks from being admitted.
ATTACKERS = 6
HOLDERS = ("open_uploads", "silent_messages")
CALL_SECONDS = 20.0


def points(X: Any) -> points_pb2.Points:
    data = np.ascontiguousarray(X, dtype=np.float32)
    tensor = points_pb2.Tensor(data_type=points_pb2.DATA_TYPE_FLOAT32, shape=data.shape, data=data.tobytes())
    return points_pb2.Points(dense=tensor)


def labels(classes: list[str]) -> model_pb2.Labels:
    values = model_pb2.ClassValues(strings=model_pb2.StringValues(values=classes))
    return model_pb2.Labels(points=range(len(classes)), classes=values)


def texts(rows: int, words: int) -> points_pb2.Points:
    """A table of texts in which every word is another."""
    each = [" ".join(f"w{row}x{word}" for word in range(words)).encode() for row in range(rows)]
    starts = np.cumsum([0, *map(len, each)]).astype("<i8")
    tensor = points_pb2.Tensor(data_type=points_pb2.DATA_TYPE_INT64, shape=starts.shape, data=starts.tobytes())
    column = points_pb2.Column(name="text", kind=points_pb2.COLUMN_KIND_TEXT)
    return points_pb2.Points(
        dense=points_pb2.Tensor(data_type=points_pb2.DATA_TYPE_FLOAT32, shape=(rows, 0)),
        schema=points_pb2.TableSchema(columns=[column]),
        strings=[points_pb2.StringColumn(row_starts=tensor, data=b"".join(each))],
    )


class Attacker:
    """The attacks; each is repeated until the time is up."""

    def __init__(self, port: int, token: str, project: str, seconds: float) -> None:
        self.port, self.parent = port, f"projects/{project}"
        self.mine = (("authorization", f"Bearer {token}"),)
        self.ends = time.monotonic() + seconds
        self.made: Counter[str] = Counter()
        self.random = random.Random(0)
        self.model = self.text_model = ""
        self.adversary = json.loads(os.environ["ADVERSARY"])

    async def run(self) -> None:
        target, options = f"{HOST}:{self.port}", [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(target, options) as self.channel:
            self.stub = HomophilyServiceStub(self.channel)
            await self._make_model()
            attacks = [
                self.open_uploads,
                self.large_fits,
                self.hungry_fits,
                self.crashing_labels,
                self.spread_searches,
                self.large_predictions,
                self.bad_tokens,
                self.silent_messages,
                self.slow_readers,
                self.pages,
                self.connections,
                self.maps,
                self.table_uploads,
                self.table_predictions,
                self.questions,
            ]
            attackers = [one for one in attacks for _ in range(1 if one.__name__ in HOLDERS else ATTACKERS)]
            await asyncio.gather(*map(self._repeat, attackers))
        print(json.dumps(dict(self.made)), flush=True)

    async def _make_model(self) -> None:
        X = np.random.default_rng(0).normal(size=(400, 4))
        request = job_pb2.FitRequest(parent=self.parent, inline=points(X), labels=labels(["a", "b"]), model_id="mine")
        request.options.wait.seconds = 60
        job = (await self.stub.Fit(request, metadata=self.mine)).job
        self.model = job.fit.model.name
        request = job_pb2.FitRequest(
            parent=self.parent,
            inline=texts(40, 1),
            labels=labels(["a", "b"]),
            model_id="texts",
            options=request.options,
        )
        job = (await self.stub.Fit(request, metadata=self.mine)).job
        self.text_model = job.fit.model.name

    async def _repeat(self, attack: Callable[[], Awaitable[Any]]) -> None:
        while time.monotonic() < self.ends:
            result = "OK"
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await attack()
            except grpc.aio.AioRpcError as error:
                # An error of gRPC's client itself, if a stream was refused while it was sending.
                is_local = str(error.details()).startswith("Internal error from Core")
                result = "refused" if is_local else error.code().name
            except (TimeoutError, OSError) as error:
                result = type(error).__name__
            self.made[f"{attack.__name__} {result}"] += 1
            await asyncio.sleep(self.random.uniform(0.0, 0.2))

    def _fit(self, X: Any, classes: list[str], **fields: Any) -> job_pb2.FitRequest:
        request = job_pb2.FitRequest(parent=self.parent, inline=points(X), labels=labels(classes), **fields)
        request.options.MergeFrom(job_pb2.JobOptions(priority=100, max_attempts=10))
        return request

    async def open_uploads(self) -> None:
        """Begin an upload, and leave it."""

        async def messages() -> AsyncIterator[dataset_pb2.UploadDatasetRequest]:
            shape = points_pb2.DenseShape(rows=100_000, columns=100, data_type=points_pb2.DATA_TYPE_FLOAT32)
            start = dataset_pb2.UploadStart(parent=self.parent, shape=points_pb2.PointsShape(dense=shape))
            yield dataset_pb2.UploadDatasetRequest(start=start)
            yield dataset_pb2.UploadDatasetRequest(chunk=dataset_pb2.UploadChunk(offset=0, data=bytes(MIB)))
            await asyncio.sleep(CALL_SECONDS)

        await self.stub.UploadDataset(messages(), metadata=self.mine)

    async def large_fits(self) -> None:
        """As many points as a message holds."""
        X = np.random.default_rng(self.random.randrange(100)).random((60_000, 16))
        await self.stub.Fit(self._fit(X, ["a", "b"]), metadata=self.mine)

    async def hungry_fits(self) -> None:
        """Graphs as dense as they may be."""
        X = np.random.default_rng(0).random((20_000, 2))
        graph = model_pb2.GraphParameters(n_neighbors=self.random.choice([20, 60, 150, 500, 10_000]))
        solver = model_pb2.SolverParameters(power=self.random.choice([1, 2, 3, 8]))
        await self.stub.Fit(self._fit(X, ["a", "b"], graph=graph, solver=solver), metadata=self.mine)

    async def crashing_labels(self) -> None:
        """Strings in an order on which NumPy's sort has crashed, and as many classes as may be."""
        X = np.random.default_rng(0).random((2_000, 2))
        classes = self.random.choice([self.adversary, [f"class {number}" for number in range(1000)]])
        await self.stub.Fit(self._fit(X, classes), metadata=self.mine)

    async def spread_searches(self) -> None:
        """Jobs that queue jobs."""
        X = np.random.default_rng(0).random((2_000, 8))
        search = model_pb2.SearchParameters(trials=1000, spread=True)
        await self.stub.Fit(self._fit(X, ["a", "b"] * 20, search=search), metadata=self.mine)

    async def large_predictions(self) -> None:
        """As many points as a message holds."""
        request = model_pb2.PredictRequest(name=self.model, points=points(np.random.default_rng(0).random((60_000, 4))))
        await self.stub.Predict(request, metadata=self.mine)

    async def bad_tokens(self) -> None:
        """Large messages with an unknown token."""
        call = self.channel.unary_unary("/homophily.v1.HomophilyService/Fit")
        await call(bytes(4 * MIB), metadata=(("authorization", "Bearer hph_nobody"),))

    async def silent_messages(self) -> None:
        """A call whose message never arrives."""

        async def nothing() -> AsyncIterator[bytes]:
            await asyncio.sleep(CALL_SECONDS)
            yield b""

        await self.channel.stream_unary("/homophily.v1.HomophilyService/Fit")(nothing(), metadata=self.mine)

    async def slow_readers(self) -> None:
        """Streams that nobody reads."""
        read = self.stub.ReadSolution(model_pb2.ReadSolutionRequest(name=self.model), metadata=self.mine)
        await asyncio.sleep(5.0)
        read.cancel()

    async def pages(self) -> None:
        """The largest lists."""
        await self.stub.ListJobs(job_pb2.ListJobsRequest(parent=self.parent, page_size=1000), metadata=self.mine)

    async def connections(self) -> None:
        """A silent connection."""
        _, writer = await asyncio.open_connection(HOST, self.port)
        await asyncio.sleep(5.0)
        writer.close()

    async def maps(self) -> None:
        """As many clusters as may be."""
        X = np.random.default_rng(0).random((3_000, 2))
        links = embedding_pb2.Links(must=[embedding_pb2.Link(first=0, second=1)])
        request = job_pb2.EmbedRequest(parent=self.parent, inline=points(X), links=links, n_clusters=1000)
        await self.stub.Embed(request, metadata=self.mine)

    async def table_uploads(self) -> None:
        """A table of as many columns of strings as there are names."""

        async def messages() -> AsyncIterator[dataset_pb2.UploadDatasetRequest]:
            count = self.random.choice([900, 50_000])
            columns = [points_pb2.Column(name=f"{n:x}", kind=points_pb2.COLUMN_KIND_CATEGORY) for n in range(count)]
            shape = points_pb2.PointsShape(
                dense=points_pb2.DenseShape(rows=1000, columns=0, data_type=points_pb2.DATA_TYPE_FLOAT32),
                schema=points_pb2.TableSchema(columns=columns),
                string_bytes=[10] * count,
            )
            yield dataset_pb2.UploadDatasetRequest(start=dataset_pb2.UploadStart(parent=self.parent, shape=shape))
            await asyncio.sleep(2.0)

        await self.stub.UploadDataset(messages(), metadata=self.mine)

    async def table_predictions(self) -> None:
        """As much text as a message holds, in short rows or in rows as long as may be."""
        rows, words = self.random.choice([(2000, 200), (40, 7000), (100_000, 1)])
        request = model_pb2.PredictRequest(name=self.text_model, points=texts(rows, words))
        await self.stub.Predict(request, metadata=self.mine)

    async def questions(self) -> None:
        """As many suggestions and explanations as may be asked for."""
        suggest = suggestion_pb2.SuggestRequest(name=self.model, count=400, strategy=self.random.choice([1, 4, 5]))
        await self.stub.Suggest(suggest, metadata=self.mine)
        explain = suggestion_pb2.ExplainRequest(name=self.model, points=range(10), label_count=100)
        await self.stub.Explain(explain, metadata=self.mine)


if __name__ == "__main__":
    # The attacker shares the cores with the processes that are measured.
    os.nice(19)
    port, token, project, seconds = sys.argv[1:]
    asyncio.run(Attacker(int(port), token, project, float(seconds)).run())
    # gRPC's shutdown takes a minute at the lowest priority, if other programs keep the cores busy.
    os._exit(0)
