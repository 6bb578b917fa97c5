// Uploads points, fits, watches and predicts, using nothing but the .proto files; prints the results as JSON.
//
//     node client.mjs 127.0.0.1:50051 path/to/proto

import { createHash } from "node:crypto";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const [target, protoFolder] = process.argv.slice(2);
const definition = protoLoader.loadSync("homophily/v1/homophily_service.proto", {
  includeDirs: [protoFolder],
  longs: Number,
  enums: String,
  oneofs: true,
});
const { HomophilyService } = grpc.loadPackageDefinition(definition).homophily.v1;
const client = new HomophilyService(target, grpc.credentials.createInsecure());

const ROWS = 200;
const COLUMNS = 3;

/** Two clouds of points around (0, 0, 0) and (8, 8, 8), in turns; the same ones on every run. */
function clouds() {
  let state = 1;
  const noise = () => (state = (state * 48271) % 2147483647) / 2147483647 - 0.5;
  const values = Array.from({ length: ROWS * COLUMNS }, (_, i) => 8 * (Math.floor(i / COLUMNS) % 2) + noise());
  return Float32Array.from(values);
}

/** A unary call as a promise. */
const call = (method, request) =>
  new Promise((resolve, reject) =>
    client[method](request, (error, answer) => (error ? reject(error) : resolve(answer))),
  );

/** Sends the points in two chunks. */
function upload(bytes) {
  return new Promise((resolve, reject) => {
    const stream = client.UploadDataset((error, answer) => (error ? reject(error) : resolve(answer.dataset)));
    const shape = { dense: { rows: ROWS, columns: COLUMNS, dataType: "DATA_TYPE_FLOAT32" } };
    stream.write({ start: { parent: "projects/default", datasetId: "from-node", shape } });
    const half = bytes.length / 2;
    stream.write({ chunk: { offset: 0, data: bytes.subarray(0, half) } });
    stream.write({ chunk: { offset: half, data: bytes.subarray(half) } });
    stream.write({ end: { sha256: createHash("sha256").update(bytes).digest() } });
    stream.end();
  });
}

/** The events of a job and, after the last one, the job. */
async function watch(name) {
  const events = [];
  let job;
  for await (const answer of client.WatchJob({ name })) {
    if (answer.event) events.push(answer.event);
    job = answer.job ?? job;
  }
  return { events, job };
}

/** The error that a call ends with. */
const refusal = (method, request) =>
  call(method, request).then(
    () => null,
    (error) => ({ code: grpc.status[error.code], message: error.details }),
  );

const points = clouds();
const bytes = Buffer.from(points.buffer);
const dataset = await upload(bytes);

const labelled = Array.from({ length: 10 }, (_, i) => i);
const { job: queued } = await call("Fit", {
  parent: "projects/default",
  dataset: dataset.name,
  labels: { points: labelled, classes: { strings: { values: labelled.map((i) => (i % 2 ? "far" : "near")) } } },
  options: { requestId: "node-1" },
});
const { events, job } = await watch(queued.name);

const answer = await call("Predict", {
  name: job.fit.model.name,
  points: { dense: { dataType: "DATA_TYPE_FLOAT32", shape: [ROWS, COLUMNS], data: bytes } },
});
const classes = answer.classes.strings.values;
const missing = await refusal("GetJob", { name: "projects/default/jobs/missing" });

console.log(
  JSON.stringify({
    dataset: { name: dataset.name, shape: dataset.shape.dense },
    events: events.map(({ sequence, state, progress }) => ({ sequence, state, phase: progress?.phase ?? "" })),
    job: { name: job.name, kind: job.kind, state: job.state, model: job.fit.model.name },
    answers: answer.classIndices.map((index) => classes[index]),
    scores: { shape: answer.scores.shape, bytes: answer.scores.data.length },
    missing,
  }),
);
client.close();
