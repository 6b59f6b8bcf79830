// The page of the booking desk: everything it knows comes from the API described in docs/desk.md.

import { clock, draw, element, make, minutes, percent, rounded } from "./dom.js";
import { colour, dashes, showMap, showTimeline } from "./map.js";

const REFRESH_SECONDS = 10;

const state = {
  config: null, places: new Map(), day: null, quote: null, wanted: null, hidden: new Set(), busy: false, unanswered: null,
};

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

function say(text, bad = false) {
  const message = element("message");
  message.textContent = text;
  message.className = bad ? "bad" : "good";
}

const dayPath = () => `/v1/days/${element("day").value}`;

// ---- the day

async function loadDay() {
  showDay(await call("GET", dayPath()));
}

function showDay(day) {
  state.day = day;
  element("closed").hidden = !day.closed;
  element("close").disabled = day.closed;
  element("weekday").textContent = new Date(`${day.day}T12:00:00`).toLocaleDateString("en", { weekday: "long" });
  const step = day.last_step;
  element("undo").disabled = step === null;
  element("undo").title = step === null ? "Nothing to undo" : `Take back the ${stepName(step)}`;
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
  redrawMap();
  showTimeline(day.routes);
  showBookings(day.bookings);
  showManifests(day);
}

const STEPS = { response: "answer", cancel: "cancellation", close: "closing of the day" };
const stepName = (step) => STEPS[step.kind] + (step.rider === null ? "" : ` of ${step.rider}`);

function redrawMap() {
  showMap({
    places: state.places,
    depot: state.day.depot,
    routes: state.day.routes.filter((route) => !state.hidden.has(route.vehicle)),
    wanted: state.wanted,
    tileUrl: state.config.tile_url,
  });
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
        redrawMap();
      },
    },
    draw("svg", { viewBox: "0 0 16 8", "aria-hidden": "true" }, draw("line", {
      x1: 0, y1: 4, x2: 16, y2: 4, stroke: colour(route.vehicle), "stroke-width": 4,
      "stroke-dasharray": dashes(route.vehicle),
    })),
    `vehicle ${route.vehicle}: ${minutes(route.driving_minutes)}`,
  )));
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
    make("td", {}, make("button", { type: "button", class: "link", onclick: () => act(() => showRider(booking.rider)) }, booking.rider)),
    make("td", { class: "wide" }, `${booking.pickup} → ${booking.dropoff}`),
    make("td", {}, times(booking)),
    make("td", {}, booking.shift_minutes ? `moved ${minutes(booking.shift_minutes)}` : ""),
    make("td", {}, status(booking)),
    make("td", { class: "buttons" }, ...bookingButtons(booking)),
  ));
  const heads = ["rider", "trip", "times", "moved", "status", "change"].map((name) => make("th", { scope: "col" }, name));
  element("bookings").replaceChildren(make("div", { class: "table", tabindex: "0", role: "region",
    "aria-label": "Bookings of the day" },
  make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows))));
}

function status(booking) {
  if (booking.vehicle === null) return STATUS[booking.status];
  return make("span", { class: "van" }, draw("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" },
    draw("circle", { cx: 5, cy: 5, r: 5, fill: colour(booking.vehicle) })), `vehicle ${booking.vehicle}`);
}

function times(booking) {
  if (booking.pickup_minute === null) {
    return `${booking.requested_pickup_window.text.replace("-", " – ")}`;
  }
  return `${clock(booking.pickup_minute)} – ${clock(booking.dropoff_minute)}`;
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
  // Sent again after a lost connection, the same trip keeps its reference and is requested once.
  const wanted = trip();
  const content = JSON.stringify([dayPath(), wanted]);
  if (state.unanswered?.content !== content) state.unanswered = { content, reference: newReference() };
  const reference = state.unanswered.reference;
  let quote;
  try {
    quote = await call("POST", `${dayPath()}/requests`, { ...wanted, reference });
  } catch (problem) {
    if (problem.status) state.unanswered = null;
    throw problem;
  }
  state.unanswered = null;
  await loadDay();
  if (quote.servable) {
    showQuote(quote);
    say(quote.offers.length ? "Quoted. Ask the rider, then choose." : "Quoted. No other times are worth offering.");
  } else {
    clearQuote();
    say(`This trip cannot be served: ${quote.as_requested.reason}`, true);
  }
}

// Random; crypto.randomUUID exists only where the page came over TLS or from this machine.
const newReference = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join("-");

function showQuote(quote) {
  state.quote = quote;
  state.wanted = state.day.bookings.find((booking) => booking.request_id === quote.request_id) ?? null;
  redrawMap();
  const cards = quote.offers.map((offer, number) => offerCard(offer, number + 1));
  const asked = quote.as_requested;
  const requested = make(
    "article",
    { class: `offer${quote.recommended === null ? " recommended" : ""}` },
    make("h3", {}, "As requested"),
    windows(asked),
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
      "Rider wants no trip ", make("kbd", {}, "d"))),
  );
  element("quote-section").hidden = false;
  element("quote-title").focus();
  element("quote-title").scrollIntoView({ block: "nearest" });
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
    windows(offer),
    make("p", { class: "numbers" },
      make("span", { class: change !== null && change < 0 ? "good" : "" }, saving),
      make("span", {}, `${percent(offer.probability)} chance of a yes`)),
    make("p", { class: "soft" }, offer.reason),
    make("button", { type: "button", class: offer.recommended ? "primary" : "", "data-offer": offer.offer,
      onclick: () => act(() => respond({ choice: "offer", offer: offer.offer })) },
    "Rider accepts ", make("kbd", {}, String(number))),
  );
}

// Both windows below each other, so that times line up from card to card.
function windows(times) {
  const rows = [["Pickup", times.pickup_window], ["Dropoff", times.dropoff_window]];
  return make("dl", { class: "windows" }, ...rows.flatMap(([name, one]) =>
    [make("dt", {}, name), make("dd", {}, one.text.replace("-", " – "))]));
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
  state.quote = state.wanted = null;
  element("quote").replaceChildren();
  element("quote-section").hidden = true;
  if (state.day) redrawMap();
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

// The version says which step the clerk sees: if another clerk was faster, nothing is taken back.
const undo = () => act(async () => {
  const step = state.day.last_step;
  if (step === null) return say("There is nothing to undo on this day.", true);
  try {
    showDay(await call("POST", `${dayPath()}/undo`, { version: state.day.version }));
  } catch (problem) {
    if (problem.code === "day_moved_on") await loadDay();
    throw problem;
  }
  clearQuote();
  say(`Taken back: ${stepName(step)}.`);
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
  new ResizeObserver(() => {
    if (!state.day) return;
    redrawMap();
    showTimeline(state.day.routes);
  }).observe(element("map"));
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
