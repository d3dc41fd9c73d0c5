// Elements are built from text nodes and attributes only, so that names of variants are never parsed as HTML.
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

const build = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== ""));
  return element;
};

const make = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);

const draw = (name, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
