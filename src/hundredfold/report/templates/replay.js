// Plays the replays of a page: play button, slider, speed, episode, keyboard. A scene draws one position.
(() => {
  "use strict";

  const FRAME_MILLISECONDS = 40;
  const isReplayPage = document.body.classList.contains("replay-page");

  function option(value, text, selected) {
    return new Option(text, value, selected, selected);
  }

  function start(root) {
    const data = JSON.parse(root.querySelector("script").textContent);
    const find = (name) => root.querySelector(name);
    const [play, slider, now, speed, episode] = [".play", ".position", ".now", ".speed", ".episode"].map(find);
    const stage = find(".stage");
    let scene, position = 0, last = 0, timer = null;

    // Go to a position; it is drawn at once.
    function go(to) {
      position = Math.min(Math.max(to, scene.first), scene.last);
      const shown = scene.whole ? Math.floor(position) : position;
      slider.value = Math.floor(position);
      const text = scene.describe(shown);
      now.textContent = text;
      slider.setAttribute("aria-valuetext", text);
      scene.draw(shown);
    }

    function open(number) {
      stage.textContent = "";
      scene = replayScenes[root.dataset.scene](stage, data, number, go);
      slider.min = Math.floor(scene.first);
      slider.max = Math.floor(scene.last);
      if (!speed.options.length) {
        for (const rate of scene.speeds) speed.add(option(rate, scene.speedText(rate), rate === scene.speed));
      }
      go(scene.first);
    }

    function pause() {
      clearInterval(timer);
      timer = null;
      play.textContent = "\u25b6";
      play.setAttribute("aria-label", "Play");
    }

    function tick() {
      const time = performance.now();
      go(position + ((time - last) / 1000) * Number(speed.value));
      last = time;
      if (position >= scene.last) pause();
    }

    function toggle() {
      if (timer !== null) return pause();
      if (position >= scene.last) go(scene.first);
      last = performance.now();
      play.textContent = "\u23f8\ufe0e";
      play.setAttribute("aria-label", "Pause");
      timer = setInterval(tick, FRAME_MILLISECONDS);
    }

    function onKey(event) {
      if (event.ctrlKey || event.altKey || event.metaKey || event.target.tagName === "SELECT") return;
      const next = scene.next ?? ((at, by) => at + by);
      const [back, forward] = [-1, 1].map((by) => next(Math.floor(position), by));
      const moves = { ArrowLeft: back, ArrowRight: forward, Home: scene.first, End: scene.last };
      if (event.key === " " && event.target !== play) toggle();
      else if (event.key in moves) {
        pause();
        go(moves[event.key]);
      } else return;
      event.preventDefault();
    }

    play.addEventListener("click", toggle);
    slider.addEventListener("input", () => { pause(); go(Number(slider.value)); });
    const episodes = data.episodes.length;
    for (let number = 0; number < episodes; number++) episode.add(option(number, String(number + 1), number === 0));
    episode.parentElement.hidden = episodes < 2;
    episode.addEventListener("change", () => { pause(); open(Number(episode.value)); });
    // On a page of its own a replay gets every key; within a report only while it has the focus.
    (isReplayPage ? document : root).addEventListener("keydown", onKey);
    open(0);
  }

  for (const root of document.querySelectorAll(".replay")) start(root);
  document.documentElement.dataset.replay = "ready";
})();
