// Draws points and links with WebGL 2, and moves them from one map to the next.

export type Colour = [number, number, number];

/** What is on the screen: the centre in the map's units, and pixels per unit. */
export interface Camera {
  x: number;
  y: number;
  scale: number;
}

const POINTS = `#version 300 es
in vec2 before; in vec2 after; in vec4 colour;
uniform vec3 camera; uniform vec2 size; uniform float share; uniform float diameter;
out vec4 shade;
void main() {
  vec2 place = (mix(before, after, share) - camera.xy) * camera.z;
  gl_Position = vec4(2.0 * place / size, 0.0, 1.0);
  gl_PointSize = diameter * (colour.a > 0.99 ? 1.0 : 0.9);
  shade = colour;
}`;

const ROUND = `#version 300 es
precision mediump float;
in vec4 shade; uniform vec4 rim; uniform float softness; out vec4 pixel;
void main() {
  float r = 2.0 * length(gl_PointCoord - 0.5);
  if (r > 1.0) discard;
  vec4 inside = rim.a > 0.0 && r > 0.62 ? rim : shade;
  float a = inside.a * min(1.0, (1.0 - r) * softness);
  pixel = vec4(inside.rgb * a, a);
}`;

const FLAT = `#version 300 es
precision mediump float;
in vec4 shade; out vec4 pixel;
void main() { pixel = vec4(shade.rgb * shade.a, shade.a); }`;

const GLIDE_MS = 700;
// While the map moves, about this many points are drawn; all of them once it has been still for a moment.
const MOVING_POINTS = 40_000;
const STILL_MS = 150;

function program(gl: WebGL2RenderingContext, fragment: string): WebGLProgram {
  const made = gl.createProgram()!;
  for (const [kind, source] of [[gl.VERTEX_SHADER, POINTS], [gl.FRAGMENT_SHADER, fragment]] as const) {
    const shader = gl.createShader(kind)!;
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(made, shader);
  }
  ["before", "after", "colour"].forEach((name, place) => gl.bindAttribLocation(made, place, name));
  gl.linkProgram(made);
  if (!gl.getProgramParameter(made, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(made) ?? "WebGL failed");
  return made;
}

/** Vertices of one kind: places before and after a glide, and colours. */
class Layer {
  count = 0;
  private readonly array: WebGLVertexArrayObject;
  private readonly buffers: WebGLBuffer[];

  constructor(private readonly gl: WebGL2RenderingContext) {
    this.array = gl.createVertexArray()!;
    gl.bindVertexArray(this.array);
    this.buffers = [0, 1, 2].map((place) => {
      gl.enableVertexAttribArray(place);
      return gl.createBuffer()!;
    });
  }

  set(place: 0 | 1 | 2, data: Float32Array | Uint8Array): void {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[place]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, data, this.gl.DYNAMIC_DRAW);
    if (place === 1) this.count = data.length / 2;
  }

  /** Draw all vertices, or every second, third and so on. */
  draw(mode: number, every = 1): void {
    if (this.count === 0) return;
    const { gl } = this;
    gl.bindVertexArray(this.array);
    this.buffers.forEach((buffer, place) => {
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      if (place < 2) gl.vertexAttribPointer(place, 2, gl.FLOAT, false, 8 * every, 0);
      else gl.vertexAttribPointer(place, 4, gl.UNSIGNED_BYTE, true, 4 * every, 0);
    });
    gl.drawArrays(mode, 0, Math.ceil(this.count / every));
  }
}

export class Scatter {
  camera: Camera = { x: 0, y: 0, scale: 1 };
  positions: Float32Array = new Float32Array(0);
  private previous: Float32Array = new Float32Array(0);
  private readonly gl: WebGL2RenderingContext;
  private readonly round: WebGLProgram;
  private readonly flat: WebGLProgram;
  private readonly points: Layer;
  private readonly marks: Layer;
  private readonly lines: Layer;
  private colours: Uint8Array = new Uint8Array(0);
  private marked: number[] = [];
  linked: { pairs: [number, number][]; colour: Colour }[] = [];
  private glideBegan = -Infinity;
  private painted: Camera | null = null;
  private stillTimer = 0;
  private framedScale = 1;
  private waiting = false;
  private ink: Colour = [0, 0, 0];

  constructor(readonly canvas: HTMLCanvasElement) {
    // Points have soft edges of their own.
    const gl = canvas.getContext("webgl2", { antialias: false, premultipliedAlpha: true });
    if (gl === null) throw new Error("This browser has no WebGL 2, which the map needs.");
    this.gl = gl;
    this.round = program(gl, ROUND);
    this.flat = program(gl, FLAT);
    [this.points, this.marks, this.lines] = [new Layer(gl), new Layer(gl), new Layer(gl)];
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  get count(): number {
    return this.positions.length / 2;
  }

  /** Place the points; ones that were there before glide from where they are. */
  place(positions: Float32Array, glide: boolean): void {
    this.previous = glide && positions.length === this.positions.length ? this.positions : positions;
    this.positions = positions;
    this.points.set(0, this.previous);
    this.points.set(1, positions);
    this.glideBegan = this.previous === positions ? -Infinity : performance.now();
    this.refill();
    this.draw();
  }

  /** Four bytes per point: red, green, blue, and how opaque. */
  colour(colours: Uint8Array, ink: Colour): void {
    this.colours = colours;
    this.ink = ink;
    this.points.set(2, colours);
    this.refill();
    this.draw();
  }

  colourAt(point: number): Uint8Array {
    return this.colours.subarray(4 * point, 4 * point + 4);
  }

  /** Points that are drawn larger, with a rim. */
  mark(points: number[]): void {
    this.marked = points;
    this.refill();
    this.draw();
  }

  link(linked: { pairs: [number, number][]; colour: Colour }[]): void {
    this.linked = linked;
    this.refill();
    this.draw();
  }

  /** Show all points but the outermost hundredth on each side. */
  frame(): void {
    if (this.count === 0) return;
    const [xs, ys] = [0, 1].map((axis) => {
      const step = Math.max(1, Math.floor(this.count / 20000));
      const values: number[] = [];
      for (let i = 0; i < this.count; i += step) values.push(this.positions[2 * i + axis]);
      values.sort((a, b) => a - b);
      const at = (share: number): number => values[Math.round(share * (values.length - 1))];
      return [at(0.01), at(0.99)];
    });
    const width = this.canvas.clientWidth || 1;
    const height = this.canvas.clientHeight || 1;
    const spread = Math.max((xs[1] - xs[0]) / width, (ys[1] - ys[0]) / height) || 1e-6;
    this.framedScale = 0.86 / spread;
    this.camera = { x: (xs[0] + xs[1]) / 2, y: (ys[0] + ys[1]) / 2, scale: this.framedScale };
    this.draw();
  }

  toScreen(point: number): [number, number] {
    const x = (this.positions[2 * point] - this.camera.x) * this.camera.scale + this.canvas.clientWidth / 2;
    const y = this.canvas.clientHeight / 2 - (this.positions[2 * point + 1] - this.camera.y) * this.camera.scale;
    return [x, y];
  }

  toMap(x: number, y: number): [number, number] {
    return [
      this.camera.x + (x - this.canvas.clientWidth / 2) / this.camera.scale,
      this.camera.y - (y - this.canvas.clientHeight / 2) / this.camera.scale,
    ];
  }

  /** Diameter of a point in CSS pixels: smaller where there are many. */
  get diameter(): number {
    const zoom = Math.sqrt(this.camera.scale / this.framedScale);
    // As large on a large screen as on a small one, beside the map.
    const side = Math.sqrt(this.canvas.clientWidth * this.canvas.clientHeight) / 640;
    const size = side * Math.min(11, 260 / Math.sqrt(this.count || 1));
    return Math.max(2, size * Math.min(2.5, Math.max(0.7, zoom)));
  }

  draw(): void {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame((now) => {
      this.waiting = false;
      this.paint(now);
    });
  }

  /** What is on the screen as PNG: read at once, as a browser forgets what it has shown. */
  picture(found: (content: Blob | null) => void): void {
    this.paint(performance.now());
    this.canvas.toBlob(found);
  }

  /** Wait until everything is drawn: frames that are only handed over would be counted too soon. */
  finish(): void {
    this.gl.readPixels(0, 0, 1, 1, this.gl.RGBA, this.gl.UNSIGNED_BYTE, new Uint8Array(4));
  }

  private paint(now: number): void {
    const { gl, canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    const passed = Math.min(1, (now - this.glideBegan) / GLIDE_MS);
    const share = passed * passed * (3 - 2 * passed);
    const use = (made: WebGLProgram, diameter: number, rim: Colour | null): void => {
      gl.useProgram(made);
      gl.uniform3f(gl.getUniformLocation(made, "camera"), this.camera.x, this.camera.y, this.camera.scale);
      gl.uniform2f(gl.getUniformLocation(made, "size"), canvas.clientWidth, canvas.clientHeight);
      gl.uniform1f(gl.getUniformLocation(made, "share"), share);
      gl.uniform1f(gl.getUniformLocation(made, "diameter"), diameter * ratio);
      gl.uniform1f(gl.getUniformLocation(made, "softness"), (diameter * ratio) / 2);
      const [r, g, b] = rim ?? [0, 0, 0];
      gl.uniform4f(gl.getUniformLocation(made, "rim"), r / 255, g / 255, b / 255, rim === null ? 0 : 1);
    };
    use(this.round, this.diameter, null);
    this.points.draw(gl.POINTS, this.isMoving() ? Math.ceil(this.count / MOVING_POINTS) : 1);
    use(this.flat, 1, null);
    this.lines.draw(gl.LINES);
    use(this.round, Math.max(9, 1.7 * this.diameter), this.ink);
    this.marks.draw(gl.POINTS);
    if (passed < 1) this.draw();
  }

  /** Whether the camera is another one than in the last picture; if so, a picture follows when it is still. */
  private isMoving(): boolean {
    const before = this.painted;
    this.painted = { ...this.camera };
    const { x, y, scale } = this.camera;
    const moved = before !== null && (before.x !== x || before.y !== y || before.scale !== scale);
    if (moved) {
      clearTimeout(this.stillTimer);
      this.stillTimer = window.setTimeout(() => this.draw(), STILL_MS);
    }
    return moved;
  }

  /** Copy the places and colours of marked and linked points into their layers. */
  private refill(): void {
    if (this.count === 0 || this.colours.length !== 4 * this.count) return;
    const fill = (layer: Layer, points: number[], colourOf: (place: number) => ArrayLike<number>): void => {
      const [before, after] = [new Float32Array(2 * points.length), new Float32Array(2 * points.length)];
      const colours = new Uint8Array(4 * points.length);
      points.forEach((point, place) => {
        before.set(this.previous.subarray(2 * point, 2 * point + 2), 2 * place);
        after.set(this.positions.subarray(2 * point, 2 * point + 2), 2 * place);
        colours.set(Array.from(colourOf(place)).slice(0, 4), 4 * place);
      });
      layer.set(0, before);
      layer.set(1, after);
      layer.set(2, colours);
    };
    const opaque = (point: number): number[] => [...this.colours.subarray(4 * point, 4 * point + 3), 255];
    fill(this.marks, this.marked, (place) => opaque(this.marked[place]));
    const ends = this.linked.flatMap((one) => one.pairs.flat());
    const shades = this.linked.flatMap((one) => one.pairs.flatMap(() => [one.colour, one.colour]));
    fill(this.lines, ends, (place) => [...shades[place], 200]);
  }
}
