// What was made so far, and how confidence and error moved with the labels.

import { colourOf, css } from "./colours";
import { at, button, fill, make } from "./dom";
import type { Colour } from "./scatter";
import type { Step } from "./study";
import { attempt, short, view } from "./view";

const MOST_STEPS = 60;
const RED: Colour = [220, 30, 40];
const course: { labelled: number; sure: number; error: number | null }[] = [];

export const forget = (): void => void (course.length = 0);

export function list(): void {
  const { state, now, canUndo, canRedo } = view.study;
  const line = (name: string, text: string, time: string, step: Partial<Step>): { time: string; row: HTMLElement } => {
    const row = button("", () => attempt(view.study.show(step)), short(name));
    row.className = name === now.model || name === now.embedding ? "step now" : "step";
    row.append(make("span", {}, text), make("time", {}, time.slice(5, 16).replace("T", " ")));
    return { time, row };
  };
  const steps = [
    ...state.models.map((one) => line(one.name, `${one.labelled} labels`, one.time, { model: one.name })),
    ...state.embeddings.map((one) => line(one.name, `map, ${one.must + one.cannot} links`, one.time, { embedding: one.name })),
  ].sort((one, other) => other.time.localeCompare(one.time));
  fill(at("history"), ...steps.slice(0, MOST_STEPS).map((one) => one.row));
  at<HTMLButtonElement>("undo").disabled = !canUndo;
  at<HTMLButtonElement>("redo").disabled = !canRedo;
}

export function facts(): void {
  const { state, model, embedding, pending } = view.study;
  at("title").textContent = short(state.dataset);
  const parts = [`${state.points.toLocaleString("en")} points`];
  if (model !== null) parts.push(`${model.labelled} labels`);
  if (pending.size > 0) parts.push(`${pending.size} waiting`);
  if (embedding !== null && embedding.must + embedding.cannot > 0) {
    parts.push(`${embedding.must + embedding.cannot} links, ${embedding.violated} violated`);
  }
  at("facts").textContent = parts.join(" · ");
  at<HTMLButtonElement>("pull").disabled = model === null;
  at("apply").hidden = view.study.isAutomatic || !view.study.hasWaiting;
  const run = at<HTMLAnchorElement>("run");
  run.hidden = !/^https?:\/\//.test(view.study.run);
  if (!run.hidden) run.href = view.study.run;
}

/** Add the model in view to the chart. */
export function measure(): void {
  const { answers, study } = view;
  if (answers === null || study.model === null) return;
  let sum = 0;
  for (const value of answers.sure) sum += value;
  course.push({ labelled: study.model.labelled, sure: sum / answers.sure.length, error: study.model.error_rate });
  chart();
}

function chart(): void {
  const canvas = at<HTMLCanvasElement>("chart");
  const pen = canvas.getContext("2d")!;
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const most = Math.max(...course.map((one) => one.labelled));
  const draw = (values: (number | null)[], colour: Colour): void => {
    pen.strokeStyle = pen.fillStyle = css(colour);
    pen.beginPath();
    values.forEach((value, place) => {
      if (value === null) return;
      const x = 4 + ((canvas.width - 8) * course[place].labelled) / most;
      const y = 4 + (canvas.height - 8) * (1 - value);
      pen.lineTo(x, y);
      pen.fillRect(x - 2, y - 2, 4, 4);
    });
    pen.stroke();
  };
  draw(course.map((one) => one.sure), colourOf(0));
  draw(course.map((one) => one.error), RED);
  const last = course[course.length - 1];
  const error = last.error === null ? "" : `, test error ${(100 * last.error).toFixed(1)} %`;
  at("course").textContent = `${last.labelled} labels: ${(100 * last.sure).toFixed(1)} % sure${error}`;
}
