// Elements and numbers of the page. Text is only ever set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const element = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function draw(tag, attributes, ...children) {
  const drawn = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) drawn.setAttribute(name, value);
  drawn.append(...children);
  return drawn;
}

export const clock = (minute) => {
  const whole = Math.floor(minute + 1e-6);
  return `${String(Math.floor(whole / 60)).padStart(2, "0")}:${String(whole % 60).padStart(2, "0")}`;
};
export const rounded = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
export const minutes = (value) => `${rounded(value, Math.abs(value) < 10 ? 1 : 0)} min`;
export const percent = (value) => `${rounded(100 * value)} %`;
