// Files to keep: labels, links, pictures, a page.

import * as api from "./api";
import { save } from "./dom";
import { isShown, say, view } from "./view";

const MOST_CIRCLES = 100_000;

export async function keep(what: string): Promise<void> {
  const { model, embedding } = view.study.now;
  const [kind, format] = what.split(".");
  if (format === "png") {
    view.scatter.picture((content) => content !== null && save(content, what));
  } else if (format === "svg") {
    keepDrawing(what);
  } else if (kind === "labels" && model === null) {
    say("There are no labels to keep yet.");
  } else {
    save(await api.exported({ what: kind, format, model, embedding }), what);
  }
}

/** The points and links on the screen as SVG. */
function keepDrawing(name: string): void {
  const { scatter } = view;
  if (scatter.count > MOST_CIRCLES) {
    say(`Drawings are for up to ${MOST_CIRCLES.toLocaleString("en")} points: save a PNG.`);
    return;
  }
  const [width, height] = [scatter.canvas.clientWidth, scatter.canvas.clientHeight];
  const parts = [`<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}">`];
  const round = (value: number): string => value.toFixed(1);
  for (let point = 0; point < scatter.count; point++) {
    const [x, y] = scatter.toScreen(point);
    if (!isShown(point) || x < 0 || y < 0 || x > width || y > height) continue;
    const [r, g, b, opaque] = scatter.colourAt(point);
    const fill = `fill="rgb(${r},${g},${b})" fill-opacity="${(opaque / 255).toFixed(2)}"`;
    parts.push(`<circle cx="${round(x)}" cy="${round(y)}" r="${round(scatter.diameter / 2)}" ${fill}/>`);
  }
  for (const { pairs, colour } of scatter.linked) {
    for (const [first, second] of pairs) {
      const [[x1, y1], [x2, y2]] = [scatter.toScreen(first), scatter.toScreen(second)];
      const ends = `x1="${round(x1)}" y1="${round(y1)}" x2="${round(x2)}" y2="${round(y2)}"`;
      parts.push(`<line ${ends} stroke="rgb(${colour.join(",")})"/>`);
    }
  }
  save(new Blob([...parts, "</svg>"], { type: "image/svg+xml" }), name);
}
