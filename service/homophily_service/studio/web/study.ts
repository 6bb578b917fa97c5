// What is being looked at: a dataset, the model and the map in view, and the acts of the person, one job at a time.

import * as api from "./api";

/** A place in the history: the model and the map that were in view. */
export interface Step {
  model: string | null;
  embedding: string | null;
}

export interface Labels {
  labels: [number, string][];
  withdrawn: number[];
}

export interface LinkAct {
  must_link?: [number, number][];
  cannot_link?: [number, number][];
  withdrawn_must?: [number, number][];
  withdrawn_cannot?: [number, number][];
  same?: number[];
  groups?: "must_link" | "cannot_link";
  first?: number[];
  second?: number[];
}

export interface Listener {
  /** The model, the map or both have changed. */
  changed(what: { model: boolean; embedding: boolean }): Promise<void>;
  working(text: string, fraction: number | null): void;
  said(text: string, isError: boolean): void;
  /** There is more or less that waits. */
  waiting(): void;
}

const PAUSE_MS = 150;
const wait = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

export class Study {
  state: api.State;
  now: Step = { model: null, embedding: null };
  /** Labels that wait for a second class, or for the job that runs. */
  pending = new Map<number, string | null>();
  private undone: Step[] = [];
  private done: Step[] = [];
  private links: LinkAct[] = [];
  private job: string | null = null;
  private busy = false;
  /** The page of the last job's run in MLflow. */
  run = "";

  constructor(state: api.State, private readonly listener: Listener) {
    this.state = state;
    for (const [point, label] of this.kept()) this.pending.set(point, label);
    const newest = state.models[0];
    this.now = { model: state.model ?? newest?.name ?? null, embedding: state.embedding ?? state.embeddings[0]?.name ?? null };
  }

  get model(): api.ModelInfo | null {
    return this.state.models.find((one) => one.name === this.now.model) ?? null;
  }

  get embedding(): api.EmbeddingInfo | null {
    return this.state.embeddings.find((one) => one.name === this.now.embedding) ?? null;
  }

  /** The classes of the model, and those that wait. */
  get classes(): string[] {
    const waiting = [...this.pending.values()].filter((label): label is string => label !== null);
    return [...new Set([...(this.model?.classes ?? []), ...waiting])];
  }

  /** Finish the job that a file's own labels started, and make a map if there is none. */
  async begin(): Promise<void> {
    await this.alone(async () => {
      if (this.state.job) await this.finish(this.state.job, "model");
      if (this.now.embedding === null) await this.map();
    });
  }

  /** Whether jobs start after each act; with many points they start when the person says so. */
  get isAutomatic(): boolean {
    return this.state.points <= this.state.automatic_up_to;
  }

  get hasWaiting(): boolean {
    return this.links.length > 0 || this.canLabel();
  }

  async label(points: number[], label: string | null): Promise<void> {
    for (const point of points) this.pending.set(point, label);
    this.keep();
    await this.acted();
  }

  async link(act: LinkAct): Promise<void> {
    this.links.push(act);
    await this.acted();
  }

  private async acted(): Promise<void> {
    if (this.isAutomatic) await this.apply();
    this.listener.waiting();
  }

  /** Let the given labels pull the map. */
  async pull(): Promise<void> {
    await this.alone(async () => {
      const { job } = await api.embed({ source: this.now.embedding, labels_of: this.now.model });
      await this.finish(job, "embedding");
    });
  }

  async undo(): Promise<void> {
    await this.go(this.done, this.undone);
  }

  async redo(): Promise<void> {
    await this.go(this.undone, this.done);
  }

  get canUndo(): boolean {
    return this.done.length > 0;
  }

  get canRedo(): boolean {
    return this.undone.length > 0;
  }

  /** Show an earlier or later model or map. */
  async show(step: Partial<Step>): Promise<void> {
    this.done.push({ ...this.now });
    this.undone = [];
    await this.move({ ...this.now, ...step });
  }

  async stop(): Promise<void> {
    if (this.job !== null) await api.cancel(this.job);
  }

  private async go(from: Step[], to: Step[]): Promise<void> {
    const step = from.pop();
    if (step === undefined) return;
    to.push({ ...this.now });
    await this.move(step);
  }

  private async move(step: Step): Promise<void> {
    const changed = { model: step.model !== this.now.model, embedding: step.embedding !== this.now.embedding };
    this.now = step;
    await this.listener.changed(changed);
  }

  /** Do what waits, unless a job runs: then it is done after that. */
  async apply(): Promise<void> {
    await this.alone(async () => {
      while (this.hasWaiting) {
        if (this.canLabel()) await this.sendLabels();
        const act = this.links.shift();
        if (act !== undefined) await this.sendLinks(act);
      }
    });
  }

  private canLabel(): boolean {
    if (this.pending.size === 0) return false;
    return this.now.model !== null || new Set([...this.pending.values()].filter((one) => one !== null)).size > 1;
  }

  private async sendLabels(): Promise<void> {
    const sent = new Map(this.pending);
    const given = [...sent].filter((one): one is [number, string] => one[1] !== null);
    const withdrawn = [...sent].filter(([, label]) => label === null).map(([point]) => point);
    const { dataset } = this.state;
    const forget = (): void => {
      for (const [point, label] of sent) if (this.pending.get(point) === label) this.pending.delete(point);
      this.keep();
    };
    try {
      const body = { dataset, model: this.now.model, labels: given, withdrawn: this.now.model === null ? [] : withdrawn };
      const { job } = await api.label(body);
      await this.finish(job, "model");
    } catch (error) {
      // What could not be sent waits for the next act.
      if (error instanceof api.Refused) forget();
      throw error;
    }
    forget();
    await this.listener.changed({ model: true, embedding: false });
  }

  private async sendLinks(act: LinkAct): Promise<void> {
    if (this.now.embedding === null) await this.map();
    const { job } = await api.embed({ source: this.now.embedding, ...act });
    await this.finish(job, "embedding");
  }

  private async map(): Promise<void> {
    const { job } = await api.embed({ source: this.now.model ?? this.state.dataset });
    await this.finish(job, "embedding");
  }

  /** Follow a job to its end, and show what it made. */
  private async finish(job: string, what: "model" | "embedding"): Promise<void> {
    this.job = job;
    const title = what === "model" ? "Labelling" : "Mapping";
    this.listener.working(title, 0);
    let info = await api.job(job);
    while (!info.final) {
      this.listener.working(`${title}: ${info.phase || info.state}`, info.fraction);
      await wait(PAUSE_MS);
      try {
        info = await api.job(job);
      } catch (error) {
        // The service may be restarting; the job is kept by it.
        this.listener.working(`Waiting for the service: ${(error as Error).message}`, null);
        await wait(10 * PAUSE_MS);
      }
    }
    this.job = null;
    this.run = info.tracking_url || this.run;
    if (info.made === null) throw new api.Refused(info.error ?? `The job is ${info.state}.`);
    this.state = await api.state(this.state.dataset);
    this.done.push({ ...this.now });
    this.undone = [];
    this.now = { ...this.now, [what]: info.made };
    for (const warning of info.warnings) this.listener.said(warning, false);
    await this.listener.changed({ model: what === "model", embedding: what === "embedding" });
  }

  /** One thing at a time; its error is shown. */
  private async alone(work: () => Promise<void>): Promise<void> {
    if (this.busy) return;
    this.busy = true;
    let isDone = false;
    try {
      await work();
      isDone = true;
    } catch (error) {
      this.job = null;
      this.listener.said((error as Error).message, true);
    }
    this.busy = false;
    this.listener.working("", null);
    // What came in the meantime.
    if (isDone && this.isAutomatic && this.hasWaiting) await this.apply();
  }

  // Labels that wait outlive a reload of the page.

  private get key(): string {
    return `homophily-pending:${this.state.dataset}`;
  }

  private keep(): void {
    if (this.pending.size > 0) localStorage.setItem(this.key, JSON.stringify([...this.pending]));
    else localStorage.removeItem(this.key);
  }

  private kept(): [number, string | null][] {
    try {
      return JSON.parse(localStorage.getItem(this.key) ?? "[]") as [number, string | null][];
    } catch {
      return [];
    }
  }
}
