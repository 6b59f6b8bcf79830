// Scene of a cage2 episode: the network host by host, truth beside what blue observes, for one or two policies.
window.replayScenes ??= {};
replayScenes.cage2 = (stage, data, number, go) => {
  "use strict";

  const names = data.legend;
  const records = data.episodes[number];
  const steps = records[0].actions.length;
  const NONE = 255;

  function add(parent, tag, kind, text = "") {
    const element = document.createElement(tag);
    element.className = kind;
    element.textContent = text;
    parent.append(element);
    return element;
  }

  function svg(parent, tag, attributes) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    parent.append(element);
    return element;
  }

  const points = (value) => value.toFixed(1).replace("-", "\u2212");

  function totals(record) {
    let sum = 0;
    return [0, ...record.rewards.map((reward) => (sum += reward))];
  }

  const returns = records.map(totals);
  const wrapper = add(stage, "div", records.length > 1 ? "panels two" : "panels");
  const panels = records.map((record, which) => {
    const root = add(wrapper, "section", "panel card");
    const head = add(root, "div", "head");
    const title = add(head, "h2", "", record.policy);
    if (records.length > 1) add(title, "i", `curve-key curve-${which}`);
    const score = add(head, "p", "score");
    const blue = add(root, "p", "act blue"), red = add(root, "p", "act red");
    const network = add(root, "div", "network");
    const groups = names.subnets.map((subnet) => {
      const group = add(network, "div", "subnet");
      add(group, "h3", "", subnet);
      return group;
    });
    const hosts = names.hosts.map((host) => {
      const box = add(groups[host.subnet], "div", "host");
      add(box, "strong", "", host.name);
      return { box, truth: add(box, "span", "truth"), seen: add(box, "span", "seen"), decoys: add(box, "span", "decoys") };
    });
    // In the direction of the attack; reports of older versions have the standard network only.
    network.append(...[...groups].reverse().sort((a, b) => order(groups.indexOf(a)) - order(groups.indexOf(b))));
    return { score, blue, red, hosts };
  });

  function order(subnet) {
    return (names.subnet_order ?? [2, 0, 1]).indexOf(subnet);
  }

  // Reward so far against steps; a click goes to that step.
  const WIDTH = 1000, HEIGHT = 160;
  const lowest = Math.min(-1, ...returns.flat());
  const chart = add(stage, "figure", "card chart-so-far");
  add(chart, "figcaption", "", `reward so far, from 0 down to ${points(lowest)}`);
  const drawing = svg(chart, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  drawing.setAttribute("aria-label", "reward so far against steps");
  const at = (step, value) => `${(step / steps) * WIDTH},${4 + (value / lowest) * (HEIGHT - 8)}`;
  returns.forEach((values, which) => {
    const path = values.map((value, step) => at(step, value)).join(" ");
    svg(drawing, "polyline", { points: path, class: `curve curve-${which}` });
  });
  const cursor = svg(drawing, "line", { y1: 0, y2: HEIGHT, class: "cursor" });
  drawing.addEventListener("click", (event) => {
    const box = drawing.getBoundingClientRect();
    go(Math.round(((event.clientX - box.left) / box.width) * steps));
  });
  const ends = add(chart, "p", "ends");
  add(ends, "span", "", "step 0");
  add(ends, "span", "", `step ${steps}`);

  const legend = add(stage, "p", "legend", "Frames: hosts that blue (solid) and red (dashed) act on in this step. ");
  add(legend, "span", "decoy", "Green: decoys. ");
  add(legend, "span", "wavy", "Wavy line");
  const entry = names.hosts[names.start_host].name, server = names.hosts[names.ot_host].name;
  legend.append(`: red is on the host and blue does not know it. Red never loses ${entry}. Points are lost where red has `
    + `privileged access, while the OT service of ${server} is stopped, and by Restore.`);

  function redText(record, step) {
    const action = record.red_action[step], target = record.red_target[step];
    if (target === NONE) return names.red_actions[action];
    const place = action === names.discover ? `subnet ${names.subnets[target]}` : names.hosts[target].name;
    return `${names.red_actions[action]} ${place}`;
  }

  const RESULTS = { yes: "succeeded", no: "failed", unknown: "" };

  function drawHost(part, record, step, host) {
    const access = names.access[record.access[step][host]], sessions = record.n_sessions[step][host];
    const activity = names.activity[record.activity[step][host]];
    const status = names.compromised[record.compromised[step][host]];
    const hidden = access !== "none" && status === "no" && host !== names.start_host;
    const stopped = host === names.ot_host && !record.ot_up[step];
    let truth = access === "none" ? (record.scanned[step][host] ? "scanned by red" : "no red session")
      : `red: ${access}${sessions > 1 ? `, ${sessions} sessions` : ""}`;
    if (stopped) truth += ", OT service stopped";
    part.truth.textContent = truth;
    part.seen.textContent = `blue sees: ${status === "no" && activity === "none" ? "nothing"
      : [activity === "none" ? "" : activity, status === "no" ? "" : `status ${status}`].filter(Boolean).join(", ")}`;
    part.decoys.textContent = names.decoys.filter((_, decoy) => record.decoys[step][host] >> decoy & 1).join(" \u00b7 ");
    const acted = step > 0;
    const blueHere = acted && names.action_hosts[record.actions[step - 1]] === host;
    const redHere = acted && record.red_action[step - 1] !== names.discover && record.red_target[step - 1] === host;
    part.box.className = ["host", `access-${access}`, hidden && "hidden-red", stopped && "stopped",
      blueHere && "by-blue", redHere && "by-red"].filter(Boolean).join(" ");
  }

  function draw(step) {
    records.forEach((record, which) => {
      const panel = panels[which];
      const reward = step ? record.rewards[step - 1] : 0;
      panel.score.textContent = `${points(returns[which][step])} points`;
      panel.score.title = `this step: ${points(reward)}`;
      const [blue, red] = step === 0 ? ["", ""] : [names.actions[record.actions[step - 1]], redText(record, step - 1)];
      const [did, hit] = step === 0 ? ["", ""]
        : [RESULTS[names.success[record.blue_success[step - 1]]], RESULTS[names.success[record.red_success[step - 1]]]];
      panel.blue.textContent = step ? `Blue: ${blue}${did ? `, ${did}` : ""}` : "Blue has not acted yet";
      panel.red.textContent = step ? `Red: ${red}${hit ? `, ${hit}` : ""}` : "Red has not acted yet";
      panel.hosts.forEach((part, host) => drawHost(part, record, step, host));
    });
    const x = (step / steps) * WIDTH;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
  }

  return {
    first: 0,
    last: steps,
    whole: true,
    speed: 2,
    speeds: [1, 2, 5, 10],
    speedText: (rate) => (rate === 1 ? "1 step/s" : `${rate} steps/s`),
    describe: (step) => `step ${step} of ${steps}`,
    draw,
  };
};
