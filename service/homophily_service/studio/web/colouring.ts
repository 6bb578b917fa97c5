// Colours of the points, and the legend.

import * as api from "./api";
import { PLAIN, colourOf, css, shade } from "./colours";
import { at, button, fill, make } from "./dom";
import type { Colour } from "./scatter";
import { codeOf, isGiven, isShown, say, view } from "./view";

let colouredBy = "class";
let extra: { categories: string[]; values: Float32Array } | null = null;

export function choices(): void {
  const { embeddings, columns } = view.study.state;
  const found = ["class", "confidence", ...(embeddings[0]?.clusters ? ["cluster"] : []), ...columns.map((name) => `column:${name}`)];
  fill(at("colour-by"), ...found.map((value) => make("option", { value, textContent: value.replace(/^column:/, "") })));
  [colouredBy, extra] = ["class", null];
}

export async function colourBy(what: string): Promise<void> {
  [colouredBy, extra] = [what, null];
  try {
    if (what === "cluster" && view.study.now.embedding !== null) {
      const values = await api.clusters(view.study.now.embedding);
      extra = { categories: [], values };
    } else if (what.startsWith("column:")) {
      extra = await api.column(view.study.state.dataset, what.slice("column:".length));
    }
  } catch (error) {
    colouredBy = "class";
    say((error as Error).message, true);
  }
  paint();
}

/** Read again what depends on the map. */
export const mapChanged = (): Promise<void> => (colouredBy === "cluster" ? colourBy("cluster") : Promise.resolve());

export function paint(): void {
  const { scatter, study, answers } = view;
  const count = scatter.count;
  if (count === 0) return;
  const classes = study.classes;
  const palette = classes.map((_, place) => colourOf(place));
  const isHidden = classes.map((name) => view.hidden.has(name));
  const counts = new Array<number>(classes.length).fill(0);
  const [low, high] = extra === null ? [0, 1] : range(extra.values);
  const isKind = extra !== null && (extra.categories.length > 0 || colouredBy === "cluster");
  const colours = new Uint8Array(4 * count);
  for (let point = 0; point < count; point++) {
    const code = codeOf(point);
    let colour: Colour = PLAIN;
    let opaque = 255;
    if (colouredBy === "class" && code >= 0) {
      colour = palette[code];
      if (answers !== null && !isGiven(point)) opaque = 90 + 150 * answers.sure[point];
    } else if (colouredBy === "confidence" && answers !== null) {
      colour = shade(answers.sure[point]);
    } else if (extra !== null) {
      const value = extra.values[point];
      if (Number.isNaN(value)) opaque = 60;
      else colour = isKind ? colourOf(value) : shade((value - low) / (high - low || 1));
    }
    if (code >= 0) {
      counts[code]++;
      if (isHidden[code]) opaque = 0;
    }
    const start = 4 * point;
    colours[start] = colour[0];
    colours[start + 1] = colour[1];
    colours[start + 2] = colour[2];
    colours[start + 3] = opaque;
  }
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  scatter.colour(colours, isDark ? [255, 255, 255] : [20, 20, 30]);
  mark();
  legend(counts);
}

function range(values: Float32Array): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** Draw given labels and the selection larger. */
export function mark(): void {
  const { scatter, study, answers, selected } = view;
  const given = new Set([...study.pending.keys(), ...selected]);
  if (answers !== null) for (let point = 0; point < scatter.count; point++) if (answers.given[point]) given.add(point);
  const chosen = new Set(selected);
  scatter.mark([...given].filter((point) => (chosen.has(point) || isGiven(point)) && isShown(point)));
}

function legend(counts: number[]): void {
  const rows = view.study.classes.map((name, place) => {
    const row = button("", () => toggle(name), "Show or hide");
    const isOff = view.hidden.has(name);
    row.setAttribute("aria-pressed", String(!isOff));
    row.className = isOff ? "class hidden" : "class";
    const dot = make("span", { className: "dot" });
    dot.style.background = css(colourOf(place));
    row.append(dot, make("span", { className: "name" }, name), make("span", { className: "count" }, String(counts[place])));
    if (place < 9) row.append(make("kbd", {}, String(place + 1)));
    return row;
  });
  const none = make("p", { className: "hint" }, "No classes yet. Select points and name their class.");
  fill(at("legend"), ...(rows.length > 0 ? rows : [none]));
}

function toggle(name: string): void {
  if (!view.hidden.delete(name)) view.hidden.add(name);
  paint();
}
