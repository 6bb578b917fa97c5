// What is worth asking next, with its reason: which class, or the same or different.

import * as api from "./api";
import { paint } from "./colouring";
import { at, button, fill, make } from "./dom";
import { select } from "./selection";
import { attempt, card, rowsOf, view } from "./view";

type Pair = [number, number];

let asked: api.Suggestions = { points: [], pairs: [] };
let skipped: { points: number[]; pairs: Pair[] } = { points: [], pairs: [] };
let about: "points" | "pairs" = "points";

/** The points that are asked about. */
export const points = (): number[] => asked.points.map((one) => one.point);

export function forget(): void {
  asked = { points: [], pairs: [] };
  skipped = { points: [], pairs: [] };
}

export async function ask(): Promise<void> {
  const { model, embedding } = view.study.now;
  const source = about === "points" ? model : embedding;
  if (source === null) {
    const hint = about === "points" ? "Label points of two classes first." : "There is no map yet.";
    fill(at("questions"), make("p", { className: "hint" }, hint));
    return;
  }
  const excluded = about === "points" ? { excluded_points: skipped.points } : { excluded_pairs: skipped.pairs };
  asked = await api.suggest({ source, count: 5, ...excluded });
  await show();
}

async function show(): Promise<void> {
  const boxes: HTMLElement[] = [];
  for (const one of asked.points) {
    const [row] = await rowsOf([one.point]);
    const acts = one.classes.map((name) => button(name, () => answerPoint(one.point, name)));
    acts.push(button("Select", () => select([one.point])), button("Skip", () => skipPoint(one.point)));
    boxes.push(make("div", { className: "question" }, card(row, 2), make("p", {}, one.text), make("div", { className: "row" }, ...acts)));
  }
  for (const one of asked.pairs) {
    const pair: Pair = [one.first, one.second];
    const [first, second] = await rowsOf(pair);
    const acts = [
      button("Same", () => answerPair(pair, "must_link"), "S"),
      button("Different", () => answerPair(pair, "cannot_link"), "D"),
      button("Skip", () => skipPair(pair), "X"),
    ];
    const both = make("div", { className: "row" }, card(first, 2), card(second, 2));
    boxes.push(make("div", { className: "question" }, both, make("p", {}, one.text), make("div", { className: "row" }, ...acts)));
  }
  const none = make("p", { className: "hint" }, "There is nothing left to ask.");
  fill(at("questions"), ...(boxes.length > 0 ? boxes : [none]));
}

export function answerPoint(point: number, name: string): void {
  attempt(view.study.label([point], name));
  asked.points = asked.points.filter((one) => one.point !== point);
  attempt(show());
  paint();
}

function answerPair(pair: Pair, kind: "must_link" | "cannot_link"): void {
  asked.pairs = asked.pairs.filter((one) => one.first !== pair[0] || one.second !== pair[1]);
  attempt(view.study.link({ [kind]: [pair] }));
  attempt(show());
}

function skipPoint(point: number): void {
  skipped.points.push(point);
  attempt(ask());
}

function skipPair(pair: Pair): void {
  skipped.pairs.push(pair);
  attempt(ask());
}

/** Answer the first question by a key: a class by its number, s(ame), d(ifferent), x to skip, n to look at it. */
export function key(pressed: string): boolean {
  const [point, pair] = [asked.points[0], asked.pairs[0]];
  if (point !== undefined) {
    const name = /^[1-9]$/.test(pressed) ? view.study.classes[Number(pressed) - 1] : undefined;
    if (name !== undefined) answerPoint(point.point, name);
    else if (pressed === "x") skipPoint(point.point);
    else if (pressed === "n") select([point.point]);
    else return false;
    return true;
  }
  if (pair === undefined) return false;
  const ends: Pair = [pair.first, pair.second];
  if (pressed === "s") answerPair(ends, "must_link");
  else if (pressed === "d") answerPair(ends, "cannot_link");
  else if (pressed === "x") skipPair(ends);
  else if (pressed === "n") select(ends);
  else return false;
  return true;
}

export function switchSubject(): void {
  about = about === "points" ? "pairs" : "points";
  at("about").textContent = about === "points" ? "Ask about pairs instead" : "Ask about points instead";
  forget();
  attempt(ask());
}
