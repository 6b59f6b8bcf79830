// The page of the booking desk: everything it knows comes from the API described in docs/desk.md.

const element = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
// Colours that differ for colour-blind readers too, on light and on dark ground; dashes tell apart those that repeat.
const COLOURS = ["#0a7abf", "#d1600a", "#169470", "#b2508e", "#8a6d00", "#5a63c9", "#c23b3b", "#3c8f3c"];
const REFRESH_SECONDS = 10;

const state = { config: null, places: new Map(), day: null, quote: null, hidden: new Set(), busy: false };

// ---- API

function token() {
  return sessionStorage.getItem("desk-token");
}

async function call(method, path, body) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (token()) headers.authorization = `Bearer ${token()}`;
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw { reason: "The desk does not answer. Is it still running?" };
  }
  if (response.status === 401) {
    await askForToken();
    return call(method, path, body);
  }
  const type = response.headers.get("content-type") ?? "";
  const data = type.includes("json") ? await response.json() : { reason: await response.text() };
  if (!response.ok) throw { status: response.status, ...data };
  return data;
}

function askForToken() {
  const dialog = element("token-dialog");
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      sessionStorage.setItem("desk-token", element("token").value);
      resolve();
    }, { once: true });
  });
}

// One action at a time: a second key press while the first is on its way must not book twice.
async function act(action) {
  if (state.busy) return;
  state.busy = true;
  try {
    await action();
  } catch (problem) {
    if (problem instanceof Error) throw problem;
    say(problem.reason ?? "Something went wrong.", true);
    if (problem.quote) showQuote(problem.quote);
  } finally {
    state.busy = false;
  }
}

const dayPath = () => `/v1/days/${element("day").value}`;

// ---- small helpers

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function draw(tag, attributes, ...children) {
  const drawn = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) drawn.setAttribute(name, value);
  drawn.append(...children);
  return drawn;
}

function say(text, bad = false) {
  const message = element("message");
  message.textContent = text;
  message.className = bad ? "bad" : "good";
}

const clock = (minute) => {
  const whole = Math.floor(minute + 1e-6);
  return `${String(Math.floor(whole / 60)).padStart(2, "0")}:${String(whole % 60).padStart(2, "0")}`;
};
const rounded = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
const minutes = (value) => `${rounded(value, Math.abs(value) < 10 ? 1 : 0)} min`;
const percent = (value) => `${rounded(100 * value)} %`;
const colour = (vehicle) => COLOURS[(vehicle - 1) % COLOURS.length];
const dashes = (vehicle) => ["none", "7 4", "2 4"][Math.floor((vehicle - 1) / COLOURS.length) % 3];

// ---- the day

async function loadDay() {
  showDay(await call("GET", dayPath()));
}

function showDay(day) {
  state.day = day;
  element("closed").hidden = !day.closed;
  element("fleet-size").value ||= day.vehicles;
  const figures = [
    ["booked", rounded(day.bookings.filter((one) => one.status === "booked").length)],
    ["driving", minutes(day.driving_minutes)],
    ["saved by moved trips", `${minutes(day.saved_minutes)} (${rounded(day.saved_pct, 1)} %)`],
    ["moved in all", minutes(day.shift_minutes)],
    ["offers accepted", `${day.offers_accepted} of ${day.offers_made}`],
    ["denied", rounded(day.denials)],
  ];
  element("figures").replaceChildren(
    ...figures.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
  showVehicles(day.routes);
  showMap(day.routes);
  showTimeline(day.routes);
  showBookings(day.bookings);
  showManifests(day);
}

function showVehicles(routes) {
  element("vehicles").replaceChildren(...routes.map((route) => make(
    "button",
    {
      type: "button",
      "aria-pressed": String(!state.hidden.has(route.vehicle)),
      onclick: () => {
        if (!state.hidden.delete(route.vehicle)) state.hidden.add(route.vehicle);
        showVehicles(routes);
        showMap(routes);
      },
    },
    draw("svg", { viewBox: "0 0 16 8", "aria-hidden": "true" }, draw("line", {
      x1: 0, y1: 4, x2: 16, y2: 4, stroke: colour(route.vehicle), "stroke-width": 4,
      "stroke-dasharray": dashes(route.vehicle),
    })),
    `vehicle ${route.vehicle}: ${minutes(route.driving_minutes)}`,
  )));
}

// ---- map

function mercator(place) {
  const north = Math.log(Math.tan(Math.PI / 4 + (place.latitude * Math.PI) / 360));
  return [(place.longitude + 180) / 360, 0.5 - north / (2 * Math.PI)];
}

function projection() {
  const places = [...state.places.values()];
  const withTiles = state.config.tile_url && places.every((place) => place.latitude !== null);
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

function showMap(routes) {
  const map = element("map");
  const { at, size, scale, offset, withTiles } = projection();
  map.setAttribute("viewBox", `0 0 ${size[0]} ${size[1]}`);
  const parts = withTiles ? tiles(size, scale, offset) : [];
  for (const place of state.places.values()) {
    const [x, y] = at(place);
    parts.push(draw("circle", { cx: x, cy: y, r: 3, fill: "var(--soft)" }, draw("title", {}, place.name)));
  }
  const depot = state.places.get(state.day.depot);
  const visited = new Map([[depot.name, [depot, "depot"]]]);
  const shown = routes.filter((route) => !state.hidden.has(route.vehicle));
  for (const route of shown) {
    const path = [depot, ...route.stops.map((stop) => state.places.get(stop.place)), depot].map(at);
    parts.push(draw("polyline", {
      points: path.map((point) => point.join(",")).join(" "), fill: "none", stroke: colour(route.vehicle),
      "stroke-width": 3, "stroke-linejoin": "round", "stroke-dasharray": dashes(route.vehicle), opacity: 0.85,
    }));
    for (const stop of route.stops) visited.set(stop.place, [state.places.get(stop.place), stop.place]);
  }
  const taken = [];
  for (const [place, label] of visited.values()) {
    const [x, y] = at(place);
    const name = draw("title", {}, place.name);
    parts.push(place === depot
      ? draw("rect", { x: x - 6, y: y - 6, width: 12, height: 12, fill: "var(--text)" }, name)
      : draw("circle", { cx: x, cy: y, r: 5, fill: "var(--card)", stroke: "var(--text)", "stroke-width": 2 }, name));
    const text = placeLabel(x, y, label, size, taken);
    if (text) parts.push(text);
  }
  map.replaceChildren(...parts);
}

// A label beside a place, or none where it would cover another one.
function placeLabel(x, y, label, size, taken) {
  const width = 7 * label.length;
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

function tiles(size, scale, offset) {
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
        href: state.config.tile_url.replace(/\{([zxy])\}/g, (_, name) => values[name]),
        x: x * width + offset[0], y: y * width + offset[1], width, height: width,
      }));
    }
  }
  return images;
}

// ---- time line

function showTimeline(routes) {
  const holder = element("timeline");
  if (routes.length === 0) {
    holder.replaceChildren(make("p", { class: "soft" }, "No vehicle drives yet."));
    return;
  }
  const start = Math.floor(Math.min(...routes.map((route) => route.start_minute)) / 60);
  const end = Math.ceil(Math.max(...routes.map((route) => route.end_minute)) / 60);
  const [width, left, top, height] = [900, 80, 22, 34];
  const x = (minute) => left + ((minute / 60 - start) / Math.max(end - start, 1)) * (width - left - 24);
  const parts = [];
  for (let hour = start; hour <= end; hour += 1) {
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
    draw("svg", { viewBox: `0 0 ${width} ${total}`, role: "img", "aria-label": "Stops of every vehicle" }, ...parts),
    make("p", { class: "soft" }, "▲ pickup, ▼ dropoff. The bookings below have all times in words."),
  );
}

// ---- bookings

const STATUS = {
  quoted: "waiting for the rider", booked: "booked", declined: "declined by the rider", denied: "no vehicle",
  cancelled: "cancelled",
};

function showBookings(bookings) {
  if (bookings.length === 0) {
    element("bookings").replaceChildren(make("p", { class: "soft" }, "No requests on this day yet."));
    return;
  }
  const rows = [...bookings].reverse().map((booking) => make(
    "tr",
    { class: booking.status === "booked" || booking.status === "quoted" ? "" : "off" },
    make("td", {}, make("button", { type: "button", onclick: () => act(() => showRider(booking.rider)) }, booking.rider)),
    make("td", {}, `${booking.pickup} → ${booking.dropoff}`),
    make("td", {}, times(booking)),
    make("td", {}, booking.shift_minutes ? minutes(booking.shift_minutes) : ""),
    make("td", {}, booking.vehicle === null ? STATUS[booking.status] : `vehicle ${booking.vehicle}`),
    make("td", { class: "row" }, ...bookingButtons(booking)),
  ));
  const heads = ["rider", "trip", "times", "moved", "status", ""].map((name) => make("th", { scope: "col" }, name));
  element("bookings").replaceChildren(make("div", { class: "table", tabindex: "0", role: "region",
    "aria-label": "Bookings of the day" },
  make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows))));
}

function times(booking) {
  if (booking.pickup_minute === null) {
    return `${booking.requested_pickup_window.text} to ${booking.requested_dropoff_window.text}`;
  }
  return `${clock(booking.pickup_minute)} to ${clock(booking.dropoff_minute)}`;
}

function bookingButtons(booking) {
  const who = `${booking.rider}, ${booking.pickup} to ${booking.dropoff}`;
  if (booking.status === "quoted") {
    return [make("button", { type: "button", "aria-label": `Continue with ${who}`,
      onclick: () => showQuote(booking.quote) }, "Continue")];
  }
  if (booking.status !== "booked") return [];
  return [
    make("button", { type: "button", "aria-label": `Try the day without ${who}`,
      onclick: () => act(() => tryChange({ cancel: booking.request_id }, `Without ${booking.rider}`)) }, "Without?"),
    make("button", { type: "button", "aria-label": `Cancel ${who}`, onclick: () => act(async () => {
      await call("DELETE", `/v1/requests/${booking.request_id}`);
      await loadDay();
      say(`Cancelled: ${booking.rider}. Undo takes it back.`);
    }) }, "Cancel"),
  ];
}

function showManifests(day) {
  const links = day.closed ? day.routes.map((route) => make("button", { type: "button", onclick: () => act(async () => {
    const answer = await call("POST", `${dayPath()}/close`);
    const manifest = answer.manifests.find((one) => one.vehicle === route.vehicle);
    const link = make("a", { download: `${day.day}-vehicle-${route.vehicle}.csv`,
      href: URL.createObjectURL(new Blob([manifest.csv], { type: "text/csv" })) });
    link.click();
  }) }, `Manifest of vehicle ${route.vehicle} (CSV)`)) : [];
  element("manifests").replaceChildren(make("div", { class: "row" }, ...links));
}

// ---- request and quote

function trip() {
  const kind = document.querySelector("input[name=time-kind]:checked").value;
  return {
    rider: element("rider").value.trim(),
    pickup: element("pickup").value.trim(),
    dropoff: element("dropoff").value.trim(),
    [kind]: element("time").value,
    passengers: Number(element("passengers").value),
    purpose: element("purpose").value,
  };
}

async function requestQuote() {
  const quote = await call("POST", `${dayPath()}/requests`, { ...trip(), reference: crypto.randomUUID() });
  await loadDay();
  if (quote.servable) {
    showQuote(quote);
    say(quote.offers.length ? "Quoted. Ask the rider, then choose." : "Quoted. No other times are worth offering.");
  } else {
    clearQuote();
    say(`This trip cannot be served: ${quote.as_requested.reason}`, true);
  }
}

function showQuote(quote) {
  state.quote = quote;
  const cards = quote.offers.map((offer, number) => offerCard(offer, number + 1));
  const asked = quote.as_requested;
  const requested = make(
    "article",
    { class: `offer${quote.recommended === null ? " recommended" : ""}` },
    make("h3", {}, "As requested"),
    make("p", {}, asked.bookable ? `Pickup ${asked.pickup_window.text}, dropoff ${asked.dropoff_window.text}` : ""),
    make("p", { class: "numbers" }, asked.bookable ? `adds ${minutes(asked.added_minutes)} of driving` : asked.reason),
    asked.bookable ? make("p", { class: "soft" }, asked.reason) : null,
    make("button", { type: "button", disabled: !asked.bookable, id: "book-as-requested",
      onclick: () => act(() => respond({ choice: "as_requested" })) }, "Book as requested ", make("kbd", {}, "0")),
  );
  const until = new Date(quote.expires_at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  element("quote").replaceChildren(
    make("h2", { id: "quote-title", tabindex: "-1" }, `Offers for ${quote.rider}`),
    make("p", { class: "soft" }, `Kept until ${until}. ${quote.notes.join(" ")}`),
    ...cards,
    requested,
    make("p", {}, make("button", { type: "button", id: "decline", onclick: () => act(() => respond({ choice: "declined" })) },
      "Rider declines ", make("kbd", {}, "d"))),
  );
  element("quote-title").focus();
}

function offerCard(offer, number) {
  const moves = [moved("pickup", offer.earlier_minutes, "earlier", "later"),
    moved("dropoff", offer.later_minutes, "later", "earlier")].filter(Boolean);
  const change = offer.change_minutes;
  const saving = change === null ? "" : change <= 0 ? `saves ${minutes(-change)} of driving` : `costs ${minutes(change)} more`;
  return make(
    "article",
    { class: `offer${offer.recommended ? " recommended" : ""}` },
    make("h3", {}, `${number}. ${moves.join(", ")}`, offer.recommended ? make("span", { class: "badge" }, "offer this first") : null),
    make("p", {}, `Pickup ${offer.pickup_window.text}, dropoff ${offer.dropoff_window.text}`),
    make("p", { class: "numbers" },
      make("span", { class: change !== null && change < 0 ? "good" : "" }, saving),
      make("span", {}, `${percent(offer.probability)} chance of a yes`)),
    make("p", { class: "soft" }, offer.reason),
    make("button", { type: "button", class: offer.recommended ? "primary" : "", "data-offer": offer.offer,
      onclick: () => act(() => respond({ choice: "offer", offer: offer.offer })) },
    "Rider accepts ", make("kbd", {}, String(number))),
  );
}

function moved(side, value, positive, negative) {
  return value === 0 ? "" : `${side} ${rounded(Math.abs(value))} min ${value > 0 ? positive : negative}`;
}

async function respond(response) {
  const quote = state.quote;
  if (!quote) return;
  const view = await call("POST", `/v1/requests/${quote.request_id}/response`, { quote_id: quote.quote_id, ...response });
  clearQuote();
  await loadDay();
  element("request").reset();
  element("rider").focus();
  say(view.status === "booked"
    ? `Booked: ${view.rider}, pickup about ${clock(view.pickup_minute)}, vehicle ${view.vehicle}.`
    : `Noted: ${view.rider} declined.`);
}

function clearQuote() {
  state.quote = null;
  element("quote").replaceChildren();
}

// ---- what if

async function tryChange(change, title) {
  const answer = await call("POST", `${dayPath()}/what-if`, change);
  const result = [make("strong", {}, `${title}: `)];
  if (!answer.feasible) {
    const riders = state.day.bookings.filter((one) => answer.unserved.includes(one.request_id)).map((one) => one.rider);
    result.push(make("span", { class: "bad" }, `not everybody can be served${riders.length ? ` (${riders.join(", ")})` : ""}.`));
  } else {
    const change = answer.change_minutes;
    const words = change > 0 ? `${minutes(change)} more` : `${minutes(-change)} less`;
    result.push(`${minutes(answer.driving_minutes)} of driving, ${words}. Nothing was booked.`);
  }
  if (answer.quote) {
    const best = answer.quote.offers[0];
    if (best) result.push(` Best offer: pickup ${best.pickup_window.text}. ${best.reason}`);
  }
  element("what-if").replaceChildren(make("p", {}, ...result));
  element("what-if").scrollIntoView({ block: "nearest" });
  say(`Tried, nothing was booked. The result is below the time line.`);
}

// ---- riders

async function showRider(name) {
  const rider = await call("GET", `/v1/riders/${encodeURIComponent(name)}`);
  element("rider-title").textContent = rider.rider;
  const left = rider.offers_left_this_week === null ? "" : `, ${rider.offers_left_this_week} left this week`;
  const types = Object.entries(rider.flexibility).map(([type, share]) => `${type} ${percent(share)}`).join(", ");
  const facts = [
    `${rider.requests} requests, ${rider.cancellations} cancelled, ${rider.denials} denied`,
    `${rider.offers_made} offers made, ${rider.offers_accepted} accepted, ${minutes(rider.shift_minutes)} moved in all`,
    `${rider.offers_this_week} offers this week${left}`,
    `Believed to be flexible: ${types}`,
  ];
  const recurring = rider.recurring_trips.map((one) => make("li", {}, make("button", { type: "button", onclick: () => {
    element("rider").value = rider.rider;
    element("pickup").value = one.pickup;
    element("dropoff").value = one.dropoff;
    element("time").value = clock(one.pickup_window.early);
    document.querySelector("input[name=time-kind][value=pickup_time]").checked = true;
    element("purpose").value = one.purpose;
    element("rider-dialog").close();
    element("quote-button").focus();
  } }, `${one.pickup} → ${one.dropoff}, ${one.pickup_window.text}, ${one.purpose}`)));
  const past = rider.bookings.map((one) => make("li", {}, `${one.day}: ${one.pickup} → ${one.dropoff}, ${STATUS[one.status]}`
    + (one.shift_minutes ? `, moved ${minutes(one.shift_minutes)}` : "")));
  element("rider-history").replaceChildren(
    ...facts.map((fact) => make("p", {}, fact)),
    ...(recurring.length ? [make("h3", {}, "Recurring trips"), make("ul", {}, ...recurring)] : []),
    ...(past.length ? [make("h3", {}, "Requests"), make("ul", {}, ...past)] : []),
  );
  element("rider-dialog").showModal();
}

// ---- events

function changeDay(days) {
  const [year, month, date] = element("day").value.split("-").map(Number);
  element("day").value = new Date(Date.UTC(year, month - 1, date + days)).toISOString().slice(0, 10);
  openDay();
}

function openDay() {
  clearQuote();
  element("what-if").replaceChildren();
  act(loadDay);
}

const undo = () => act(async () => {
  showDay(await call("POST", `${dayPath()}/undo`));
  clearQuote();
  say("The last step was taken back.");
});

function listen() {
  element("request").addEventListener("submit", (event) => {
    event.preventDefault();
    act(requestQuote);
  });
  element("try").addEventListener("click", () => {
    if (element("request").reportValidity()) act(() => tryChange({ trip: trip() }, "With this trip"));
  });
  element("fleet").addEventListener("submit", (event) => {
    event.preventDefault();
    const vehicles = Number(element("fleet-size").value);
    act(() => tryChange({ vehicles }, `With ${vehicles} vehicles`));
  });
  element("show-rider").addEventListener("click", () => {
    const name = element("rider").value.trim();
    if (name) act(() => showRider(name));
  });
  element("day").addEventListener("change", openDay);
  element("previous-day").addEventListener("click", () => changeDay(-1));
  element("next-day").addEventListener("click", () => changeDay(1));
  element("undo").addEventListener("click", undo);
  element("help").addEventListener("click", () => element("help-dialog").showModal());
  element("close").addEventListener("click", () => act(async () => {
    showDay((await call("POST", `${dayPath()}/close`)).day);
    say("The day is closed and its routes are optimised. Manifests are below the bookings; undo opens it again.");
  }));
  document.addEventListener("keydown", onKey);
  window.addEventListener("resize", () => state.day && showMap(state.day.routes));
  setInterval(refresh, 1000 * REFRESH_SECONDS);
}

function onKey(event) {
  const typing = event.target.closest("input:not([type=radio]), select, textarea");
  if (event.key === "Escape" && typing) typing.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const offer = /^[1-9]$/.test(event.key) ? state.quote?.offers[Number(event.key) - 1] : undefined;
  if (offer) act(() => respond({ choice: "offer", offer: offer.offer }));
  else if (event.key === "0" && state.quote?.as_requested.bookable) act(() => respond({ choice: "as_requested" }));
  else if (event.key === "d" && state.quote) act(() => respond({ choice: "declined" }));
  else if (event.key === "u") undo();
  else if (event.key === "?") element("help-dialog").showModal();
  else if (event.key === "/") element("rider").focus();
  else return;
  event.preventDefault();
}

// Bookings of other clerks appear without a reload.
async function refresh() {
  if (state.busy || document.hidden || !state.day) return;
  try {
    const day = await call("GET", dayPath());
    if (day.day === element("day").value && day.version !== state.day.version) showDay(day);
  } catch (problem) {
    if (problem instanceof Error) throw problem;
    say(problem.reason, true);
  }
}

async function start() {
  state.config = await call("GET", "/v1/config");
  for (const place of await call("GET", "/v1/places")) state.places.set(place.name, place);
  element("places").replaceChildren(...[...state.places.keys()].sort().map((name) => make("option", { value: name })));
  element("purpose").replaceChildren(...state.config.purposes.map((name) => make("option", { value: name }, name)));
  element("passengers").max = state.config.capacity;
  element("day").value = state.config.today;
  listen();
  await loadDay();
  element("rider").focus();
}

act(start);
