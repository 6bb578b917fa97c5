// The calls of the page. The token stands behind "#" in the address, where browsers keep it to themselves.

export interface ModelInfo {
  name: string;
  parent: string | null;
  classes: string[];
  labelled: number;
  time: string;
  error_rate: number | null;
  suspects: number[];
  warnings: string[];
}

export interface EmbeddingInfo {
  name: string;
  parent: string | null;
  must: number;
  cannot: number;
  violated: number;
  clusters: number;
  time: string;
  warnings: string[];
}

export interface State {
  dataset: string;
  description: string;
  points: number;
  columns: string[];
  has_rows: boolean;
  /** From this number of points on, acts wait until they are applied. */
  automatic_up_to: number;
  models: ModelInfo[];
  embeddings: EmbeddingInfo[];
  /** What was opened by its name, or the job of a file's own labels. */
  model?: string;
  embedding?: string;
  job?: string | null;
}

export interface DatasetInfo {
  name: string;
  points: number;
  description: string;
  time: string;
}

export interface Links {
  must_link: [number, number][];
  cannot_link: [number, number][];
  violated_must: [number, number][];
  violated_cannot: [number, number][];
}

export interface Answers {
  classes: Int32Array;
  sure: Float32Array;
  given: Uint8Array;
}

export interface Row {
  point: number;
  cells?: [string, string][];
  pixels?: number[];
  side?: number;
  /** The path or address of an image. */
  image?: string;
}

export interface JobInfo {
  state: string;
  final: boolean;
  phase: string;
  fraction: number;
  error: string | null;
  made: string | null;
  warnings: string[];
  changed: number | null;
  tracking_url: string;
}

export interface Suggestions {
  points: { point: number; text: string; classes: string[] }[];
  pairs: { first: number; second: number; text: string; together: number }[];
}

export interface Explanation {
  answer: string;
  runner_up: string;
  parts: { point: number; class: string; share: number; steps: number }[];
}

/** The request or its job is wrong: trying it again would not help. */
export class Refused extends Error {}

const token = location.hash.slice(1);

async function sent(path: string, init: RequestInit): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, { ...init, method: "POST", headers: { ...init.headers, authorization: `Bearer ${token}` } });
  } catch {
    throw new Error("The studio does not answer. Is it still running?");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let sentence = text;
  try {
    sentence = (JSON.parse(text) as { error: string }).error;
  } catch {
    // A sentence as it is.
  }
  const Kind = answer.status < 500 && answer.status !== 429 ? Refused : Error;
  throw new Kind(sentence || `The studio answered with ${answer.status}.`);
}

const post = (name: string, body: object): Promise<Response> => sent(`/api/${name}`, { body: JSON.stringify(body) });

async function json<T>(name: string, body: object = {}): Promise<T> {
  return (await (await post(name, body)).json()) as T;
}

const bytes = async (name: string, body: object): Promise<ArrayBuffer> => (await post(name, body)).arrayBuffer();

export const start = (): Promise<{ opened: State | null; datasets?: DatasetInfo[] }> => json("start");
export const open = (name: string): Promise<State> => json("open", { name });
export const state = (dataset: string): Promise<State> => json("state", { dataset });
export const links = (embedding: string): Promise<Links> => json("links", { embedding });
export const rows = (dataset: string, points: number[]): Promise<Row[]> => json("rows", { dataset, points });
export const find = (dataset: string, text: string): Promise<number[]> => json("find", { dataset, text });
export const job = (name: string): Promise<JobInfo> => json("job", { job: name });
export const cancel = (name: string): Promise<object> => json("cancel", { job: name });
export const explain = (model: string, point: number): Promise<Explanation> => json("explain", { model, points: [point] });

export const label = (body: object): Promise<{ job: string }> => json("label", body);
export const embed = (body: object): Promise<{ job: string }> => json("embed", body);
export const suggest = (body: object): Promise<Suggestions> => json("suggest", body);

export const coordinates = async (embedding: string): Promise<Float32Array> =>
  new Float32Array(await bytes("coordinates", { embedding }));

export const clusters = async (embedding: string): Promise<Float32Array> =>
  new Float32Array(await bytes("clusters", { embedding }));

export async function answers(model: string, points: number): Promise<Answers> {
  const found = await bytes("answers", { model });
  return {
    classes: new Int32Array(found, 0, points),
    sure: new Float32Array(found, 4 * points, points),
    given: new Uint8Array(found, 8 * points, points),
  };
}

export async function column(dataset: string, name: string): Promise<{ categories: string[]; values: Float32Array }> {
  const found = await bytes("column", { dataset, name });
  const length = new DataView(found).getUint32(0, true);
  const head = new TextDecoder().decode(new Uint8Array(found, 4, length));
  return { categories: JSON.parse(head) as string[], values: new Float32Array(found.slice(4 + length)) };
}

export const image = async (dataset: string, point: number): Promise<Blob> => (await post("image", { dataset, points: [point] })).blob();

export async function upload(file: File): Promise<State> {
  const answer = await sent("/api/file", { body: file, headers: { "x-file-name": encodeURIComponent(file.name) } });
  return (await answer.json()) as State;
}

export const exported = async (body: object): Promise<Blob> => (await post("export", body)).blob();
