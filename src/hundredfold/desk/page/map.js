// Map of the routes, with or without tiles, and the time line of the vehicles.

import { draw, element, make } from "./dom.js";

// Colours that differ for colour-blind readers too, on light and on dark ground; dashes tell apart those that repeat.
const COLOURS = ["#0a7abf", "#d1600a", "#169470", "#b2508e", "#8a6d00", "#5a63c9", "#c23b3b", "#3c8f3c"];

export const colour = (vehicle) => COLOURS[(vehicle - 1) % COLOURS.length];
export const dashes = (vehicle) => ["none", "7 4", "2 4"][Math.floor((vehicle - 1) / COLOURS.length) % 3];

function mercator(place) {
  const north = Math.log(Math.tan(Math.PI / 4 + (place.latitude * Math.PI) / 360));
  return [(place.longitude + 180) / 360, 0.5 - north / (2 * Math.PI)];
}

function projection(places, tileUrl) {
  const withTiles = tileUrl && places.every((place) => place.latitude !== null);
  const raw = (place) => (withTiles ? mercator(place) : [place.x, -place.y]);
  const all = places.map(raw);
  const low = [0, 1].map((axis) => Math.min(...all.map((point) => point[axis])));
  const high = [0, 1].map((axis) => Math.max(...all.map((point) => point[axis])));
  const size = [element("map").clientWidth || 600, element("map").clientHeight || 380];
  const margin = 28;
  const scale = Math.min(...[0, 1].map((axis) => (size[axis] - 2 * margin) / Math.max(high[axis] - low[axis], 1e-9)));
  const offset = [0, 1].map((axis) => size[axis] / 2 - (scale * (low[axis] + high[axis])) / 2);
  const at = (place) => raw(place).map((value, axis) => value * scale + offset[axis]);
  return { at, size, scale, offset, withTiles };
}

// Draws places, routes and the requested trip.
//   places: all places by name; depot: name; routes: those to show; wanted: { pickup, dropoff } or null.
export function showMap({ places, depot: depotName, routes, wanted, tileUrl }) {
  const map = element("map");
  const { at, size, scale, offset, withTiles } = projection([...places.values()], tileUrl);
  map.setAttribute("viewBox", `0 0 ${size[0]} ${size[1]}`);
  const parts = withTiles ? tiles(tileUrl, size, scale, offset) : [];
  for (const place of places.values()) {
    const [x, y] = at(place);
    parts.push(draw("circle", { cx: x, cy: y, r: 3, fill: "var(--soft)" }, draw("title", {}, place.name)));
  }
  const depot = places.get(depotName);
  const visited = new Map([[depot.name, [depot, "depot"]]]);
  for (const route of routes) {
    const path = [depot, ...route.stops.map((stop) => places.get(stop.place)), depot].map(at);
    parts.push(draw("polyline", {
      points: path.map((point) => point.join(",")).join(" "), fill: "none", stroke: colour(route.vehicle),
      "stroke-width": 3, "stroke-linejoin": "round", "stroke-dasharray": dashes(route.vehicle), opacity: 0.85,
    }));
    for (const stop of route.stops) visited.set(stop.place, [places.get(stop.place), stop.place]);
  }
  const taken = [];
  const trip = wantedTrip(wanted && [places.get(wanted.pickup), places.get(wanted.dropoff)], at, taken);
  for (const [place] of visited.values()) {
    const [x, y] = at(place);
    taken.push([x - 6, y - 6, x + 6, y + 6]);
  }
  for (const [place, label] of visited.values()) {
    const [x, y] = at(place);
    const name = draw("title", {}, place.name);
    parts.push(place === depot
      ? draw("rect", { x: x - 6, y: y - 6, width: 12, height: 12, fill: "var(--text)" }, name)
      : draw("circle", { cx: x, cy: y, r: 5, fill: "var(--card)", stroke: "var(--text)", "stroke-width": 2 }, name));
    const text = placeLabel(x, y, label, size, taken);
    if (text) parts.push(text);
  }
  map.replaceChildren(...parts, ...trip);
}

// The trip that is being quoted: from and to, so that a clerk sees where it lies.
function wantedTrip(ends, at, taken) {
  if (!ends || !ends[0] || !ends[1]) return [];
  const points = ends.map(at);
  const line = draw("polyline", { points: points.map((point) => point.join(",")).join(" "), class: "wanted" });
  const marks = points.map(([x, y], number) => {
    taken.push([x - 11, y - 11, x + 11, y + 11]);
    return draw("g", { class: "wanted-end" }, draw("circle", { cx: x, cy: y, r: 10 }),
      draw("text", { x, y: y + 4, "text-anchor": "middle" }, number === 0 ? "A" : "B"));
  });
  return [line, ...marks];
}

// Text grows with the page's font on large screens.
const textScale = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;

// A label beside a place, or none where it would cover another one.
function placeLabel(x, y, label, size, taken) {
  const width = 7 * textScale() * label.length;
  for (const [left, anchor] of [[x + 9, "start"], [x - 9 - width, "end"]]) {
    const box = [left, y - 8, left + width, y + 8];
    const covers = taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
    if (left >= 0 && left + width <= size[0] && !covers) {
      taken.push(box);
      const at = { x: anchor === "start" ? x + 9 : x - 9, y: y + 4, class: "halo", "text-anchor": anchor };
      return draw("text", at, label);
    }
  }
  return null;
}

function tiles(tileUrl, size, scale, offset) {
  const zoom = Math.max(0, Math.min(18, Math.floor(Math.log2(scale / 256))));
  const count = 2 ** zoom;
  const width = scale / count;
  const images = [];
  const first = [0, 1].map((axis) => Math.max(0, Math.floor(-offset[axis] / width)));
  const last = [0, 1].map((axis) => Math.min(count - 1, Math.floor((size[axis] - offset[axis]) / width)));
  for (let x = first[0]; x <= last[0]; x += 1) {
    for (let y = first[1]; y <= last[1]; y += 1) {
      const values = { z: zoom, x, y };
      images.push(draw("image", {
        href: tileUrl.replace(/\{([zxy])\}/g, (_, name) => values[name]),
        x: x * width + offset[0], y: y * width + offset[1], width, height: width,
      }));
    }
  }
  return images;
}

// ---- time line

export function showTimeline(routes) {
  const holder = element("timeline");
  if (routes.length === 0) {
    holder.replaceChildren(make("p", { class: "soft" }, "No vehicle drives yet."));
    return;
  }
  const start = Math.floor(Math.min(...routes.map((route) => route.start_minute)) / 60);
  const end = Math.ceil(Math.max(...routes.map((route) => route.end_minute)) / 60);
  const [width, left, top, height] = [Math.max(holder.clientWidth, 520), 72 * textScale(), 22, 30];
  const x = (minute) => left + ((minute / 60 - start) / Math.max(end - start, 1)) * (width - left - 24);
  const parts = [];
  // Hours that have room for their label.
  const step = Math.max(1, Math.ceil((44 * textScale() * (end - start)) / (width - left)));
  for (let hour = start; hour <= end; hour += step) {
    parts.push(draw("line", {
      x1: x(60 * hour), x2: x(60 * hour), y1: top - 4, y2: top + routes.length * height, stroke: "var(--line)",
    }));
    parts.push(draw("text", { x: x(60 * hour), y: top - 8, "text-anchor": "middle" }, `${hour}:00`));
  }
  routes.forEach((route, number) => {
    const middle = top + number * height + height / 2;
    parts.push(draw("text", { x: 0, y: middle + 4 }, `vehicle ${route.vehicle}`));
    parts.push(draw("line", {
      x1: x(route.start_minute), x2: x(route.end_minute), y1: middle, y2: middle, stroke: colour(route.vehicle),
      "stroke-width": 3,
    }));
    for (const stop of route.stops) {
      const at = x(stop.minute);
      const mark = stop.kind === "pickup" ? `${at - 6},${middle + 7} ${at + 6},${middle + 7} ${at},${middle - 7}`
        : `${at - 6},${middle - 7} ${at + 6},${middle - 7} ${at},${middle + 7}`;
      const words = `${stop.time} ${stop.kind} of ${stop.rider} at ${stop.place}; ${stop.on_board} on board after it`;
      parts.push(draw("polygon", { points: mark, fill: colour(route.vehicle) }, draw("title", {}, words)));
    }
  });
  const total = top + routes.length * height + 4;
  holder.replaceChildren(
    draw("svg", { width, height: total, viewBox: `0 0 ${width} ${total}`, role: "img", "aria-label": "Stops of every vehicle" }, ...parts),
    make("p", { class: "soft" }, "▲ pickup, ▼ dropoff. The bookings below have all times in words."),
  );
}
