// The selected points: who they are, and what the person says of them.

import * as api from "./api";
import { mark, paint } from "./colouring";
import { at, button, fill, make } from "./dom";
import { attempt, card, classOf, isGiven, rowsOf, say, view } from "./view";

const SHOWN_ROWS = 30;
let asTable = false;

export function select(points: number[], add = false): void {
  view.selected = add ? [...new Set([...view.selected, ...points])] : points;
  mark();
  attempt(show());
}

export async function show(): Promise<void> {
  const { selected, aside } = view;
  const wanted = selected.slice(0, SHOWN_ROWS);
  at("selected-count").textContent = selected.length === 0 ? "Nothing is selected" : `${selected.length} selected`;
  at("acts").hidden = selected.length === 0;
  at<HTMLButtonElement>("different").disabled = selected.length !== 2 && aside.length === 0;
  at<HTMLButtonElement>("same").disabled = selected.length < 2 && aside.length === 0;
  at("aside").textContent = aside.length === 0 ? "Set aside, to compare" : `Set aside: ${aside.length} (drop)`;
  const rows = await rowsOf(wanted);
  if (view.selected !== selected) return;
  const more = selected.length - rows.length;
  const shown = asTable ? [table(rows)] : rows.map((row) => chosen(row));
  fill(at("gallery"), ...shown, more > 0 ? make("p", { className: "hint" }, `and ${more} more`) : null);
  if (selected.length === 1 && view.study.now.model !== null) {
    at("gallery").append(button("Why this class?", () => attempt(why(selected[0]))));
  }
}

function chosen(row: api.Row): HTMLElement {
  const box = card(row);
  box.addEventListener("click", () => select([row.point]));
  return box;
}

function table(rows: api.Row[]): HTMLElement {
  const names = (rows[0]?.cells ?? []).map(([name]) => name);
  const head = make("tr", {}, ...["point", "class", ...names].map((name) => make("th", { scope: "col" }, name)));
  const lines = rows.map((row) => {
    const cells = [String(row.point), classOf(row.point) ?? "", ...(row.cells ?? []).map(([, value]) => value)];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
  });
  return make("div", { className: "table" }, make("table", {}, head, ...lines));
}

export function switchForm(): void {
  asTable = !asTable;
  at("form").setAttribute("aria-pressed", String(asTable));
  attempt(show());
}

async function why(point: number): Promise<void> {
  if (view.study.now.model === null) return;
  const found = await api.explain(view.study.now.model, point);
  const parts = found.parts.map((one) => {
    const steps = `${one.steps} step${one.steps === 1 ? "" : "s"}`;
    return make("li", {}, `${Math.round(100 * one.share)} % from #${one.point} (${one.class}), ${steps} away`);
  });
  const head = `${found.answer} rather than ${found.runner_up}:`;
  at("gallery").append(make("div", { className: "why" }, head, make("ul", {}, ...parts)));
}

export function give(label: string, points = view.selected): void {
  const name = label.trim();
  if (name === "" || points.length === 0) return;
  at<HTMLInputElement>("class-name").value = "";
  attempt(view.study.label(points, name));
  paint();
  attempt(show());
}

/** Take back the labels of the selected points, and the links between them. */
export function withdraw(): void {
  const points = view.selected.filter(isGiven);
  const chosen = new Set(view.selected);
  const within = (pairs: [number, number][] = []): [number, number][] => pairs.filter(([i, j]) => chosen.has(i) && chosen.has(j));
  const [must, cannot] = [within(view.links?.must_link), within(view.links?.cannot_link)];
  if (points.length + must.length + cannot.length === 0) {
    say("Neither a label nor a link was given for these points.");
    return;
  }
  if (points.length > 0) attempt(view.study.label(points, null));
  if (must.length + cannot.length > 0) attempt(view.study.link({ withdrawn_must: must, withdrawn_cannot: cannot }));
  paint();
}

export function relate(kind: "must_link" | "cannot_link"): void {
  const { study, selected, aside } = view;
  if (aside.length > 0) attempt(study.link({ groups: kind, first: aside, second: selected }));
  else if (kind === "must_link") attempt(study.link({ same: selected }));
  else attempt(study.link({ cannot_link: [[selected[0], selected[1]]] }));
  view.aside = [];
  attempt(show());
}

export function setAside(): void {
  view.aside = view.aside.length > 0 ? [] : view.selected;
  attempt(show());
}
