// Elements of the page. Text is always set as text, so nothing that data holds becomes part of the page's code.

export function at<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found as T;
}

type Child = Node | string | null;

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K, properties: Partial<HTMLElementTagNameMap[K]> = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child): child is Node | string => child !== null));
  return made;
}

export function button(text: string, act: () => unknown, title = ""): HTMLButtonElement {
  const made = make("button", { type: "button", textContent: text, title });
  made.addEventListener("click", () => act());
  return made;
}

export function fill(parent: HTMLElement, ...children: Child[]): void {
  parent.replaceChildren(...children.filter((child): child is Node | string => child !== null));
}

export function save(content: Blob, name: string): void {
  const link = make("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
