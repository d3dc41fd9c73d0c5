// Elements are built from text nodes and attributes only, so that names of systems are never parsed as HTML.
const build = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== "" && child !== false));
  return element;
};

const make = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);

const draw = (name, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

const byId = (id) => document.getElementById(id);

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

const dot = (look) => make("i", { class: `dot ${look}` });

const isNarrow = () => matchMedia("(max-width: 45rem)").matches;

// Elements that are built again keep the focus if their attribute data-focus is the same.
const keepFocus = (action) => {
  const { focus } = document.activeElement?.dataset ?? {};
  action();
  if (focus) document.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
};

const unpack = (text) => {
  const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
};

const DATA = await unpack(byId("data").textContent);
