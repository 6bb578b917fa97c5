// What the parts of the page share: the study, the map, the answers, the selection; and words about them.

import * as api from "./api";
import { at, make } from "./dom";
import type { Pointing } from "./pointing";
import type { Scatter } from "./scatter";
import type { Study } from "./study";

export interface View {
  study: Study;
  scatter: Scatter;
  pointing: Pointing;
  answers: api.Answers | null;
  links: api.Links | null;
  selected: number[];
  /** A group that the next selection is compared with. */
  aside: number[];
  hidden: Set<string>;
}

export const view = {
  answers: null, links: null, selected: [], aside: [], hidden: new Set<string>(),
} as unknown as View;

const rowsKept = new Map<number, api.Row>();
const pictures = new Map<string, Promise<string>>();

/** Forget what belongs to another dataset. */
export function reset(): void {
  Object.assign(view, { answers: null, links: null, selected: [], aside: [], hidden: new Set() });
  rowsKept.clear();
  pictures.clear();
}

export function say(text: string, isError = false): void {
  const line = make("p", { className: isError ? "error" : "" }, text);
  at("said").prepend(line);
  while (at("said").childElementCount > 4) at("said").lastElementChild!.remove();
  setTimeout(() => line.remove(), isError ? 30000 : 12000);
}

/** Do something that may fail; its error is said. */
export function attempt(work: Promise<unknown>): void {
  work.catch((error: Error) => say(error.message, true));
}

export const short = (name: string): string => name.split("/").pop() ?? name;

/** The place of a point's class among the classes of the study; −1 without one. */
export function codeOf(point: number): number {
  const waiting = view.study.pending.get(point);
  if (waiting != null) return view.study.classes.indexOf(waiting);
  return view.answers === null ? -1 : view.answers.classes[point];
}

export function classOf(point: number): string | null {
  const code = codeOf(point);
  return code < 0 ? null : view.study.classes[code];
}

export const isGiven = (point: number): boolean =>
  view.study.pending.get(point) != null || (view.answers?.given[point] === 1 && view.study.pending.get(point) !== null);

export const isShown = (point: number): boolean => view.hidden.size === 0 || !view.hidden.has(classOf(point) ?? "");

export async function rowsOf(points: number[]): Promise<api.Row[]> {
  const missing = points.filter((point) => !rowsKept.has(point));
  if (missing.length > 0 && view.study.state.has_rows) {
    for (const row of await api.rows(view.study.state.dataset, missing)) rowsKept.set(row.point, row);
  }
  return points.map((point) => rowsKept.get(point) ?? { point });
}

/** A point with its image, its class and its first cells. */
export function card(row: api.Row, most = 4): HTMLElement {
  const box = make("div", { className: "card" });
  if (row.pixels !== undefined && row.side !== undefined) box.append(drawn(row.pixels, row.side));
  if (row.image !== undefined) box.append(picture(row.image, row.point));
  const name = classOf(row.point);
  const sure = isGiven(row.point) ? "given" : `${Math.round(100 * (view.answers?.sure[row.point] ?? 0))} %`;
  const text = make("div", { className: "text" }, make("b", {}, `#${row.point}`), name === null ? null : ` ${name} (${sure})`);
  for (const [column, value] of (row.cells ?? []).slice(0, most)) {
    text.append(make("div", { className: "cell" }, make("i", {}, column), ` ${value}`));
  }
  box.append(text);
  return box;
}

function drawn(pixels: number[], side: number): HTMLCanvasElement {
  const canvas = make("canvas", { width: side, height: side, className: "thumbnail" });
  const pen = canvas.getContext("2d")!;
  const data = pen.createImageData(side, side);
  pixels.forEach((value, place) => data.data.set([value, value, value, 255], 4 * place));
  pen.putImageData(data, 0, 0);
  return canvas;
}

function picture(address: string, point: number): HTMLImageElement {
  const image = make("img", { className: "thumbnail", alt: `Image of point ${point}` });
  if (address.startsWith("https://")) {
    image.src = address;
    return image;
  }
  if (!pictures.has(address)) {
    pictures.set(address, api.image(view.study.state.dataset, point).then((content) => URL.createObjectURL(content)));
  }
  pictures.get(address)!.then((url) => (image.src = url), () => image.remove());
  return image;
}
