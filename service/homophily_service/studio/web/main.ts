// Puts the page together: what is shown follows the study, and what the person does goes to it.

import * as api from "./api";
import * as colouring from "./colouring";
import { at, button, fill, make } from "./dom";
import { keep } from "./export";
import * as history from "./history";
import { Grid, Pointing } from "./pointing";
import * as questions from "./questions";
import { Scatter, type Colour } from "./scatter";
import * as selection from "./selection";
import { Study } from "./study";
import { attempt, card, classOf, isShown, reset, rowsOf, say, short, view } from "./view";

const RED: Colour = [220, 30, 40];
const GREEN: Colour = [60, 150, 90];
const GREY: Colour = [130, 130, 140];

function working(text: string, fraction: number | null): void {
  at("work").hidden = text === "";
  at("work-text").textContent = text;
  const bar = at<HTMLProgressElement>("work-bar");
  if (fraction === null) bar.removeAttribute("value");
  else bar.value = fraction;
}

// -- following the study

async function changed(what: { model: boolean; embedding: boolean }): Promise<void> {
  if (what.model) await modelChanged();
  if (what.embedding) await embeddingChanged();
  history.facts();
  colouring.paint();
  history.list();
  attempt(selection.show());
  attempt(questions.ask());
}

async function modelChanged(): Promise<void> {
  const { model } = view.study.now;
  const answers = model === null ? null : await api.answers(model, view.study.state.points);
  // Something else may be in view by now.
  if (model !== view.study.now.model) return;
  view.answers = answers;
  history.measure();
}

async function embeddingChanged(): Promise<void> {
  const { embedding } = view.study.now;
  if (embedding === null) return;
  const [places, links] = await Promise.all([api.coordinates(embedding), api.links(embedding)]);
  if (embedding !== view.study.now.embedding) return;
  const isFirst = view.scatter.count === 0;
  view.links = links;
  view.scatter.place(places, !isFirst);
  view.pointing.grid = new Grid(places);
  if (isFirst) view.scatter.frame();
  view.scatter.link([
    { pairs: links.must_link, colour: GREEN },
    { pairs: links.cannot_link, colour: GREY },
    { pairs: [...links.violated_must, ...links.violated_cannot], colour: RED },
  ]);
  await colouring.mapChanged();
}

async function enter(state: api.State): Promise<void> {
  at("welcome").hidden = true;
  at("studio").hidden = false;
  reset();
  questions.forget();
  history.forget();
  view.study = new Study(state, { changed, working, said: say, waiting: history.facts });
  view.scatter.place(new Float32Array(0), false);
  colouring.choices();
  await changed({ model: true, embedding: true });
  await view.study.begin();
}

// -- the start

async function drop(file: File): Promise<void> {
  working(`Reading ${file.name}`, null);
  try {
    await enter(await api.upload(file));
  } finally {
    working("", null);
  }
}

function welcome(datasets: api.DatasetInfo[]): void {
  const rows = datasets.map((one) => {
    const row = button("", () => attempt(api.open(one.name).then(enter)));
    row.className = "step";
    const about = `${one.points.toLocaleString("en")} points ${one.description}`;
    row.append(make("b", {}, short(one.name)), make("span", {}, about));
    return row;
  });
  const none = make("p", { className: "hint" }, "Nothing is on the service yet.");
  fill(at("datasets"), ...(rows.length > 0 ? rows : [none]));
}

// -- mouse and keyboard

let hovered: number | null = null;

async function hover(point: number | null, x: number, y: number): Promise<void> {
  hovered = point;
  const tip = at("tip");
  tip.hidden = point === null;
  if (point === null) return;
  const [row] = await rowsOf([point]).catch(() => [{ point }]);
  if (hovered !== point) return;
  fill(tip, card(row, 8));
  const { clientWidth, clientHeight } = view.scatter.canvas;
  tip.style.left = `${Math.min(x + 14, clientWidth - 240)}px`;
  tip.style.top = `${Math.min(y + 14, clientHeight - 120)}px`;
}

function keys(event: KeyboardEvent): void {
  const target = event.target as HTMLElement;
  if (target instanceof HTMLInputElement || target instanceof HTMLSelectElement) {
    if (event.key === "Escape") target.blur();
    return;
  }
  if (view.study === undefined) return;
  const { study, selected, aside } = view;
  const pressed = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.ctrlKey || event.metaKey) {
    if (pressed === "z") attempt(event.shiftKey ? study.redo() : study.undo());
    else if (pressed === "y") attempt(study.redo());
    else return;
  } else if (event.altKey) return;
  else if (pressed === "Escape") selection.select([]);
  else if (pressed === "f") view.scatter.frame();
  else if (selected.length === 0 || pressed === "n" || pressed === "x") {
    if (!questions.key(pressed)) return;
  } else if (/^[1-9]$/.test(pressed) && study.classes[Number(pressed) - 1] !== undefined) {
    selection.give(study.classes[Number(pressed) - 1]);
  } else if (pressed === "Delete" || pressed === "Backspace") selection.withdraw();
  else if (pressed === "s" && (selected.length > 1 || aside.length > 0)) selection.relate("must_link");
  else if (pressed === "d" && (selected.length === 2 || aside.length > 0)) selection.relate("cannot_link");
  else if (pressed === "a") selection.setAside();
  else if (pressed === "Enter" && target === view.scatter.canvas) at("class-name").focus();
  else if (pressed === "c") at("class-name").focus();
  else return;
  event.preventDefault();
}

function lasso(): void {
  view.pointing.lasso = !view.pointing.lasso;
  at("lasso").setAttribute("aria-pressed", String(view.pointing.lasso));
}

async function find(): Promise<void> {
  const text = at<HTMLInputElement>("find").value.trim();
  if (text === "") return;
  const found = await api.find(view.study.state.dataset, text);
  if (found.length > 0) selection.select(found);
  else say(`Nothing has “${text}”.`);
}

function wire(): void {
  view.scatter = new Scatter(at<HTMLCanvasElement>("map"));
  view.pointing = new Pointing(view.scatter, at<HTMLCanvasElement>("overlay"), {
    hover: (point, x, y) => void hover(point, x, y),
    pick: (point, add) => selection.select(point === null ? [] : [point], add && point !== null),
    select: selection.select,
  });
  view.pointing.isShown = isShown;
  const acts: [string, () => unknown][] = [
    ["same", () => selection.relate("must_link")],
    ["different", () => selection.relate("cannot_link")],
    ["aside", selection.setAside],
    ["withdraw", selection.withdraw],
    ["form", selection.switchForm],
    ["undo", () => attempt(view.study.undo())],
    ["redo", () => attempt(view.study.redo())],
    ["apply", () => attempt(view.study.apply())],
    ["pull", () => attempt(view.study.pull())],
    ["cancel", () => attempt(view.study.stop())],
    ["frame", () => view.scatter.frame()],
    ["lasso", lasso],
    ["about", questions.switchSubject],
  ];
  for (const [id, act] of acts) at(id).addEventListener("click", () => act());
  at<HTMLSelectElement>("colour-by").addEventListener("change", (event) => {
    attempt(colouring.colourBy((event.target as HTMLSelectElement).value));
  });
  at<HTMLSelectElement>("keep").addEventListener("change", (event) => {
    const choice = event.target as HTMLSelectElement;
    attempt(keep(choice.value));
    choice.value = "";
  });
  at("label-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = at<HTMLInputElement>("class-name");
    selection.give(name.value);
    name.blur();
  });
  at("find-form").addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(find());
  });
  at<HTMLInputElement>("file").addEventListener("change", (event) => {
    const file = (event.target as HTMLInputElement).files?.[0];
    if (file !== undefined) attempt(drop(file));
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (file !== undefined) attempt(drop(file));
  });
  document.addEventListener("keydown", keys);
}

async function main(): Promise<void> {
  wire();
  const { opened, datasets } = await api.start();
  if (opened !== null) await enter(opened);
  else welcome(datasets ?? []);
}

// For the console, and for tests of the page.
Object.assign(window, { studio: { view, classOf, select: selection.select, asked: questions.points } });
attempt(main());
