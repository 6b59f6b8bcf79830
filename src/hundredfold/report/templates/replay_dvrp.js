// Scene of a dvrp day: first the calls, one after another, then vans on the map through the day; of one
// policy or of two side by side.
window.replayScenes ??= {};
replayScenes.dvrp = (stage, data, number) => {
  "use strict";

  const days = data.episodes[number], numCalls = days[0].calls.length;
  // Positions below 0 are calls, CALL positions each; from 0 on they are minutes of the day.
  const CALL = 10, SPEED_TEXT = { 5: "slow", 15: "normal", 40: "fast", 120: "very fast" };
  const firstCall = -CALL * numCalls;
  const routes = days.flatMap((day) => [...day.before.routes, ...day.after.routes]);
  const windows = days.flatMap((day) => day.calls.map((call) => call.requested));
  const starts = [...routes.map((route) => route.start_minutes), ...windows.map((window) => window[0][0])];
  const ends = [...routes.map((route) => route.end_minutes), ...windows.map((window) => window[1][1])];
  const begin = 60 * Math.floor(Math.min(...starts) / 60), end = Math.ceil(Math.max(...ends));
  const callsUntil = (position) => (position >= 0 ? numCalls : Math.floor((position - firstCall) / CALL) + 1);

  const panels = document.createElement("div");
  panels.className = days.length > 1 ? "panels two" : "panels";
  stage.append(panels);
  // All panels exist before the maps measure their width.
  const places = days.map((day) => {
    const panel = document.createElement("section");
    panel.className = "panel-day";
    if (days.length > 1) panel.append(Object.assign(document.createElement("h2"), { textContent: day.policy }));
    panels.append(panel);
    return panel;
  });
  const drawn = days.map((day, which) => replayScenes.dvrpDay(places[which], data, day, begin, end, callsUntil));
  const clock = (minutes) => `${String(Math.floor(minutes / 60)).padStart(2, "0")}:${String(minutes % 60).padStart(2, "0")}`;

  return {
    first: firstCall,
    last: end - begin,
    whole: false,
    speed: 15,
    speeds: [5, 15, 40, 120],
    speedText: (rate) => SPEED_TEXT[rate],
    next: (position, by) => (position + Math.min(by, 0) < 0 ? CALL * Math.floor(position / CALL + by) : position + by),
    describe: (position) => (position < 0 ? `call ${callsUntil(position)} of ${numCalls}` : clock(Math.round(begin + position))),
    draw: (position) => { for (const draw of drawn) draw(position); },
  };
};

// One day of one policy; returns the function that draws a position.
replayScenes.dvrpDay = (stage, data, day, begin, end, callsUntil) => {
  "use strict";

  const city = data.city, calls = day.calls;

  function add(parent, tag, kind, text = "") {
    const element = document.createElement(tag);
    element.className = kind;
    element.textContent = text;
    parent.append(element);
    return element;
  }

  function svg(parent, tag, attributes = {}) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    parent.append(element);
    return element;
  }

  const clock = (minutes) => {
    const whole = Math.round(minutes);
    return `${String(Math.floor(whole / 60)).padStart(2, "0")}:${String(whole % 60).padStart(2, "0")}`;
  };
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const place = (cell) => city.names[cell];
  const who = (call) => `customer ${call.customer}, ${call.purpose}`;
  const colour = (van) => data.colours[van % data.colours.length];

  // -- routes ---------------------------------------------------------------------------------

  const callOf = (stop) => Math.floor((stop - 1) / 2);
  const cellOf = (stop) => calls[callOf(stop)].cells[(stop - 1) % 2];

  function legs(route) {
    const path = [city.depot, ...route.stops.map(cellOf), city.depot];
    return route.leg_minutes.map((minutes, k) => {
      const departs = k === 0 ? route.start_minutes : route.stop_minutes[k - 1] + day.service_minutes;
      return { from: path[k], to: path[k + 1], departs, minutes };
    });
  }

  function drivenBy(solution, minute) {
    let sum = 0;
    for (const route of solution.routes) {
      for (const leg of route.legs) sum += clamp(minute - leg.departs, 0, leg.minutes);
    }
    return sum;
  }

  for (const solution of [day.before, day.after]) for (const route of solution.routes) route.legs = legs(route);
  const rides = new Map();
  for (const route of day.after.routes) {
    route.stops.forEach((stop, k) => {
      const ride = rides.get(callOf(stop)) ?? { van: route.vehicle };
      ride[stop % 2 ? "pickup" : "dropoff"] = route.stop_minutes[k];
      rides.set(callOf(stop), ride);
    });
  }

  function offerText(call) {
    if (call.response === "no offer") return "no offer";
    const [earlier, later] = call.offer;
    const shift = (stop, minutes) => minutes && `${stop} ${Math.abs(minutes)} min ${minutes > 0 ? "later" : "earlier"}`;
    const parts = [shift("pickup", -earlier), shift("dropoff", later)].filter(Boolean);
    return `offered ${parts.join(", ")}: ${call.response}`;
  }

  // -- figures of the day ---------------------------------------------------------------------

  const facts = add(stage, "dl", "cards figures");
  function card(name) {
    const box = add(facts, "div", "card");
    add(box, "dt", "", name);
    const value = add(box, "dd", "");
    return { strong: add(value, "strong", ""), small: add(value, "small", "") };
  }
  const booked = card("calls booked"), offers = card("offers accepted");
  const driven = card("driving so far"), saved = card("against the day as requested");

  // -- map ------------------------------------------------------------------------------------

  const columns = add(stage, "div", "day");
  const mapCard = add(columns, "figure", "card map");
  const known = city.points.filter(Boolean);
  const bounds = [0, 1].map((axis) => {
    const values = known.map((point) => point[axis]);
    return [Math.min(...values), Math.max(...values)];
  });
  // Degrees of longitude are shorter than those of latitude.
  const squeeze = city.unit === "degrees" ? Math.cos(((bounds[0][0] + bounds[0][1]) / 2) * (Math.PI / 180)) : 1;
  const spanX = (bounds[1][1] - bounds[1][0]) * squeeze || 1, spanY = bounds[0][1] - bounds[0][0] || 1;
  const width = clamp(mapCard.clientWidth || 600, 300, 700), pad = 16;
  const scale = Math.min((width - 2 * pad) / spanX, (1.1 * width - 2 * pad) / spanY);
  const height = spanY * scale + 2 * pad;
  const left = (width - spanX * scale) / 2;
  const xy = (cell) => city.points[cell] && [
    left + (city.points[cell][1] - bounds[1][0]) * squeeze * scale,
    height - pad - (city.points[cell][0] - bounds[0][0]) * scale,
  ];
  const map = svg(mapCard, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  map.setAttribute("aria-label", "map with vans");
  city.points.forEach((_, cell) => {
    const at = xy(cell);
    if (at) svg(svg(map, "circle", { cx: at[0], cy: at[1], r: 2.5, class: "place" }), "title").textContent = place(cell);
  });
  const depot = xy(city.depot);
  if (depot) {
    const square = svg(map, "rect", { x: depot[0] - 6, y: depot[1] - 6, width: 12, height: 12, class: "depot" });
    svg(square, "title").textContent = "depot";
  }
  const trips = calls.map((call) => {
    const [from, to] = call.cells.map(xy);
    if (!from || !to) return null;
    return svg(map, "line", { x1: from[0], y1: from[1], x2: to[0], y2: to[1], class: "trip" });
  });
  let selected = null;
  const vans = day.after.routes.map((route) => {
    const trail = svg(map, "polyline", { class: "trail", stroke: colour(route.vehicle) });
    const group = svg(map, "g", { class: "van", tabindex: 0, role: "button" });
    group.setAttribute("aria-label", `van ${route.vehicle + 1}`);
    svg(group, "circle", { r: 12, fill: colour(route.vehicle) });
    svg(group, "text", { y: 4.5 }).textContent = route.vehicle + 1;
    const badge = svg(group, "text", { x: 13, y: -8, class: "badge" });
    describeOn(group, () => vanText(route));
    return { route, trail, group, badge };
  });
  for (const van of vans) map.append(van.group);
  const detail = add(mapCard, "figcaption", "detail");
  detail.setAttribute("aria-live", "polite");

  // Show a text while the mouse or the focus is on an element, or after a tap on it.
  function describeOn(element, text) {
    for (const kind of ["click", "pointerenter", "focus"]) {
      element.addEventListener(kind, () => { selected = text; draw(current); });
    }
    for (const kind of ["pointerleave", "blur"]) {
      element.addEventListener(kind, (event) => {
        if (event.pointerType === "touch") return;
        selected = null;
        draw(current);
      });
    }
  }

  function vanAt(route, minute) {
    let leg = route.legs[0], share = 0;
    for (const next of route.legs) {
      if (minute < next.departs) break;
      leg = next;
      share = next.minutes ? clamp((minute - next.departs) / next.minutes, 0, 1) : 1;
    }
    return { leg, share, index: route.legs.indexOf(leg) };
  }

  function onBoard(route, minute) {
    return [...rides].filter(([, ride]) => ride.van === route.vehicle && ride.pickup <= minute && minute < ride.dropoff)
      .map(([call]) => calls[call]);
  }

  function vanText(route) {
    const minute = begin + Math.max(current, 0);
    const name = `Van ${route.vehicle + 1}`;
    if (current < 0 || minute < route.start_minutes) return `${name} leaves the depot at ${clock(route.start_minutes)}.`;
    if (minute >= route.end_minutes) return `${name} is back at the depot since ${clock(route.end_minutes)}.`;
    const inside = onBoard(route, minute), { leg, share } = vanAt(route, minute);
    const where = share < 1 ? `on the way to ${place(leg.to)}` : `at ${place(leg.to)}`;
    return `${name} is ${where}; on board: ${inside.length ? inside.map(who).join("; ") : "nobody"}.`;
  }

  function callText(index) {
    const call = calls[index], ride = rides.get(index);
    const windows = ([pickup, dropoff]) =>
      `pickup ${clock(pickup[0])}\u2013${clock(pickup[1])}, dropoff ${clock(dropoff[0])}\u2013${clock(dropoff[1])}`;
    const served = ride ? `Van ${ride.van + 1} drives from ${clock(ride.pickup)} to ${clock(ride.dropoff)}.` : "Not served.";
    return `Call ${index + 1}: ${who(call)}, from ${place(call.cells[0])} to ${place(call.cells[1])}. ` +
      `Requested ${windows(call.requested)}; ${offerText(call)}. ${served}`;
  }

  // -- time line ------------------------------------------------------------------------------

  const lines = add(columns, "div", "card lines");
  add(lines, "h2", "", "Calls, offers and rides");
  add(lines, "p", "subtitle", "A row per call, by pickup time; \u2713 accepted an offer, \u2717 refused one, others got none. " +
    "Upper bar: pickup window, lower bar: dropoff window; frames: as requested; line: the ride in its van's colour.");
  const axis = add(lines, "div", "axis");
  for (let hour = Math.ceil(begin / 60); hour * 60 <= end; hour += end - begin > 600 ? 3 : 2) {
    add(axis, "span", "", clock(hour * 60)).style.left = percent(hour * 60);
  }
  const rowsBox = add(lines, "div", "rows");

  function percent(minute) {
    return `${(100 * (minute - begin)) / (end - begin)}%`;
  }

  function bar(parent, kind, from, to) {
    const element = add(parent, "i", kind);
    element.style.left = percent(from);
    element.style.width = `${(100 * (to - from)) / (end - begin)}%`;
    return element;
  }

  const MARKS = { accepted: "\u2713", refused: "\u2717", "no offer": "" };
  const sorted = calls.map((_, index) => index).sort((a, b) => calls[a].booked[0][0] - calls[b].booked[0][0]);
  const rows = [];
  for (const index of sorted) {
    const call = calls[index], row = add(rowsBox, "button", "row");
    row.type = "button";
    row.setAttribute("aria-label", callText(index));
    const name = add(row, "span", "name", `${MARKS[call.response]} ${call.purpose}`.trim());
    name.classList.add(call.response.replace(" ", "-"));
    const band = add(row, "span", "band");
    ["pickup", "dropoff"].forEach((kind, which) => {
      bar(band, `window ${kind}`, ...call.booked[which]);
      if (call.requested[which][0] !== call.booked[which][0]) bar(band, `window requested ${kind}`, ...call.requested[which]);
    });
    const ride = rides.get(index);
    if (ride) bar(band, "ride", ride.pickup, ride.dropoff).style.background = colour(ride.van);
    describeOn(row, () => callText(index));
    rows[index] = row;
  }
  const cursor = add(add(rowsBox, "div", "cursor-box"), "div", "cursor-line");

  // -- drawing --------------------------------------------------------------------------------

  let current = -1;

  function event(minute) {
    let last = null;
    for (const route of day.after.routes) {
      route.stops.forEach((stop, k) => {
        const at = route.stop_minutes[k];
        if (at <= minute && (last === null || at > last.at)) last = { at, stop, route };
      });
    }
    if (last === null) return "The vans leave the depot.";
    const verb = last.stop % 2 ? "picks up" : "drops off";
    return `${clock(last.at)} van ${last.route.vehicle + 1} ${verb} ${who(calls[callOf(last.stop)])}, ` +
      `at ${place(cellOf(last.stop))}.`;
  }

  // Vans in the depot stand side by side below it, smaller than those on the road.
  function parkedAt(number) {
    const x = clamp(depot[0] + 19 * (number - (vans.length - 1) / 2), 10, width - 10);
    return `translate(${x.toFixed(1)} ${(depot[1] + 20).toFixed(1)}) scale(0.7)`;
  }

  function drawVans(minute) {
    for (const [number, { route, trail, group, badge }] of vans.entries()) {
      const { leg, share, index } = vanAt(route, minute);
      const a = xy(leg.from), b = xy(leg.to);
      group.style.display = a && b ? "" : "none";
      if (!a || !b) continue;
      const at = [a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])];
      const isParked = minute < route.start_minutes || minute >= route.end_minutes;
      const shownAt = isParked && depot ? parkedAt(number) : `translate(${at[0].toFixed(1)} ${at[1].toFixed(1)})`;
      group.setAttribute("transform", shownAt);
      group.classList.toggle("parked", isParked);
      const count = onBoard(route, minute).length;
      badge.textContent = count ? `+${count}` : "";
      const path = minute < route.start_minutes ? [] : route.legs.slice(0, index + 1).map((one) => xy(one.from)).filter(Boolean);
      trail.setAttribute("points", [...path, at].map((point) => point.map((value) => value.toFixed(1)).join(",")).join(" "));
    }
  }

  function drawFigures(position, minute) {
    const done = calls.slice(0, callsUntil(position)), made = done.filter((call) => call.response !== "no offer");
    booked.strong.textContent = `${done.length} of ${calls.length}`;
    booked.small.textContent = position < 0 ? "calls come before the day" : "all calls came before the day";
    offers.strong.textContent = `${made.filter((call) => call.response === "accepted").length} of ${made.length}`;
    offers.small.textContent = "changes of time windows";
    const [now, before] = [day.after, day.before].map((solution) => drivenBy(solution, minute));
    driven.strong.textContent = `${now.toFixed(0)} min`;
    driven.small.textContent = `of ${day.after.driving_minutes.toFixed(0)} min with ${day.after.routes.length} vans`;
    const difference = before - now, whole = day.before.driving_minutes - day.after.driving_minutes;
    const text = (value) => (Math.abs(value) < 0.5 ? "0 min" : `${Math.abs(value).toFixed(0)} min ${value < 0 ? "more" : "less"}`);
    saved.strong.textContent = text(difference);
    const share = day.before.driving_minutes ? (100 * whole) / day.before.driving_minutes : 0;
    saved.small.textContent = `whole day: ${text(whole)} of ${day.before.driving_minutes.toFixed(0)} min ` +
      `(${Math.abs(share).toFixed(1)}\u00a0%)`;
  }

  function draw(position) {
    current = position;
    const minute = begin + Math.max(position, 0), inBooking = position < 0;
    const count = callsUntil(position);
    drawVans(minute);
    drawFigures(position, minute);
    calls.forEach((_, index) => {
      const ride = rides.get(index);
      const isNow = inBooking ? index === count - 1 : Boolean(ride) && ride.pickup <= minute && minute < ride.dropoff;
      rows[index].classList.toggle("later", index >= count);
      rows[index].classList.toggle("now", isNow);
      trips[index]?.setAttribute("class", index < count && (inBooking || isNow) ? (isNow ? "trip now" : "trip shown") : "trip");
    });
    cursor.style.left = percent(minute);
    cursor.hidden = inBooking;
    detail.textContent = selected ? selected() : inBooking ? callText(count - 1) : event(minute);
  }

  return draw;
};
