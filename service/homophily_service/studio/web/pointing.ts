// What the mouse does on the map: drag moves it, the wheel zooms, Shift and a drag draw a lasso, a click picks a point.

import type { Scatter } from "./scatter";

export interface Gestures {
  hover(point: number | null, x: number, y: number): void;
  pick(point: number | null, add: boolean): void;
  select(points: number[], add: boolean): void;
}

const REACH = 12;
const CELLS = 256;

/** Finds points near a place on the map, by a grid of cells. */
export class Grid {
  private readonly low: [number, number];
  private readonly step: [number, number];
  private readonly starts = new Uint32Array(CELLS * CELLS + 1);
  private readonly members: Uint32Array;

  constructor(private readonly positions: Float32Array) {
    const count = positions.length / 2;
    const low: [number, number] = [Infinity, Infinity];
    const high: [number, number] = [-Infinity, -Infinity];
    for (let i = 0; i < positions.length; i++) {
      low[i & 1] = Math.min(low[i & 1], positions[i]);
      high[i & 1] = Math.max(high[i & 1], positions[i]);
    }
    this.low = low;
    this.step = [(high[0] - low[0]) / CELLS || 1, (high[1] - low[1]) / CELLS || 1];
    const cells = new Uint32Array(count);
    for (let i = 0; i < count; i++) {
      cells[i] = this.cell(positions[2 * i], 0) + CELLS * this.cell(positions[2 * i + 1], 1);
      this.starts[cells[i] + 1]++;
    }
    for (let c = 0; c < CELLS * CELLS; c++) this.starts[c + 1] += this.starts[c];
    const next = this.starts.slice();
    this.members = new Uint32Array(count);
    for (let i = 0; i < count; i++) this.members[next[cells[i]]++] = i;
  }

  private cell(value: number, axis: 0 | 1): number {
    return Math.max(0, Math.min(CELLS - 1, Math.floor((value - this.low[axis]) / this.step[axis])));
  }

  /** All points in the cells that a rectangle touches. */
  *within(left: number, bottom: number, right: number, top: number): Generator<number> {
    const columns = [this.cell(left, 0), this.cell(right, 0)];
    for (let row = this.cell(bottom, 1); row <= this.cell(top, 1); row++) {
      for (let at = this.starts[columns[0] + CELLS * row]; at < this.starts[columns[1] + CELLS * row + 1]; at++) {
        yield this.members[at];
      }
    }
  }

  nearest(x: number, y: number, reach: number, isShown: (point: number) => boolean): number | null {
    let [best, least] = [null as number | null, reach * reach];
    for (const point of this.within(x - reach, y - reach, x + reach, y + reach)) {
      const distance = (this.positions[2 * point] - x) ** 2 + (this.positions[2 * point + 1] - y) ** 2;
      if (distance < least && isShown(point)) [best, least] = [point, distance];
    }
    return best;
  }

  /** Points inside of a closed line. */
  inside(line: [number, number][], isShown: (point: number) => boolean): number[] {
    const [xs, ys] = [line.map((one) => one[0]), line.map((one) => one[1])];
    const found: number[] = [];
    for (const point of this.within(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys))) {
      const [x, y] = [this.positions[2 * point], this.positions[2 * point + 1]];
      let inside = false;
      for (let i = 0, j = line.length - 1; i < line.length; j = i++) {
        const crosses = ys[i] > y !== ys[j] > y;
        if (crosses && x < ((xs[j] - xs[i]) * (y - ys[i])) / (ys[j] - ys[i]) + xs[i]) inside = !inside;
      }
      if (inside && isShown(point)) found.push(point);
    }
    return found.sort((a, b) => a - b);
  }
}

export class Pointing {
  grid = new Grid(new Float32Array(0));
  isShown: (point: number) => boolean = () => true;
  /** Whether a drag draws a lasso without Shift. */
  lasso = false;
  private from: { x: number; y: number; moved: boolean; line: [number, number][] | null } | null = null;
  private readonly pen: CanvasRenderingContext2D;

  constructor(private readonly scatter: Scatter, overlay: HTMLCanvasElement, private readonly gestures: Gestures) {
    this.pen = overlay.getContext("2d")!;
    const canvas = scatter.canvas;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => this.gestures.hover(null, 0, 0));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  private at(x: number, y: number): number | null {
    return this.grid.nearest(...this.scatter.toMap(x, y), REACH / this.scatter.camera.scale, this.isShown);
  }

  private down(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.scatter.canvas.setPointerCapture(event.pointerId);
    const [x, y] = [event.offsetX, event.offsetY];
    this.from = { x, y, moved: false, line: event.shiftKey || this.lasso ? [[x, y]] : null };
  }

  private move(event: PointerEvent): void {
    const [x, y] = [event.offsetX, event.offsetY];
    if (this.from === null) {
      this.gestures.hover(this.at(x, y), x, y);
      return;
    }
    this.from.moved ||= Math.hypot(x - this.from.x, y - this.from.y) > 3;
    if (!this.from.moved) return;
    this.gestures.hover(null, 0, 0);
    if (this.from.line !== null) {
      this.from.line.push([x, y]);
      this.show(this.from.line);
      return;
    }
    this.scatter.camera.x -= (x - this.from.x) / this.scatter.camera.scale;
    this.scatter.camera.y += (y - this.from.y) / this.scatter.camera.scale;
    [this.from.x, this.from.y] = [x, y];
    this.scatter.draw();
  }

  private up(event: PointerEvent): void {
    const from = this.from;
    this.from = null;
    if (from === null) return;
    const add = event.ctrlKey || event.metaKey;
    if (!from.moved) {
      this.gestures.pick(this.at(event.offsetX, event.offsetY), event.shiftKey || add);
    } else if (from.line !== null) {
      this.show([]);
      const line = from.line.map(([x, y]) => this.scatter.toMap(x, y));
      this.gestures.select(this.grid.inside(line, this.isShown), add);
    }
  }

  private wheel(event: WheelEvent): void {
    event.preventDefault();
    const { camera } = this.scatter;
    const [x, y] = this.scatter.toMap(event.offsetX, event.offsetY);
    camera.scale *= Math.exp(-0.0015 * event.deltaY);
    const [nowX, nowY] = this.scatter.toMap(event.offsetX, event.offsetY);
    [camera.x, camera.y] = [camera.x + x - nowX, camera.y + y - nowY];
    this.scatter.draw();
  }

  private show(line: [number, number][]): void {
    const { canvas } = this.pen;
    [canvas.width, canvas.height] = [canvas.clientWidth, canvas.clientHeight];
    if (line.length === 0) return;
    this.pen.beginPath();
    line.forEach(([x, y]) => this.pen.lineTo(x, y));
    this.pen.closePath();
    this.pen.fillStyle = "rgba(70, 130, 240, 0.15)";
    this.pen.strokeStyle = "rgb(70, 130, 240)";
    this.pen.fill();
    this.pen.stroke();
  }
}
