// Logs that are open: earlier and later lines as they are scrolled to, new lines as they come, and keys. Without it the page's links do the same.
"use strict";
(() => {
  const logs = document.querySelector(".logs");
  if (!logs) return;
  const MOST = 3000; // rows of one log; beyond it those that are farthest away go
  const NEAR = 600; // px from an end at which more is fetched
  const single = "single" in logs.dataset;
  const panes = [...logs.querySelectorAll(".pane")].map((section) => {
    const log = section.querySelector(".log");
    const { task, attempt, begin, end } = log.dataset;
    return {
      task, log, lines: log.querySelector(".lines"), button: section.querySelector(".follow"), status: section.querySelector("[role=status]"),
      first: Number(attempt), attempt: Number(attempt), begin: Number(begin), end: Number(end), last: "last" in log.dataset, over: "over" in log.dataset,
      following: false, turn: Promise.resolve(), near: false, moved: 0, settled: 0,
    };
  });

  const bottom = (pane) => pane.log.scrollHeight - pane.log.scrollTop - pane.log.clientHeight;
  const toEnd = (pane) => { pane.log.scrollTop = pane.log.scrollHeight; };
  const toMiddle = (pane, row) => { pane.log.scrollTop += row.getBoundingClientRect().top - pane.log.getBoundingClientRect().top - pane.log.clientHeight / 3; };
  const count = (pane) => pane.lines.childElementCount;

  function nodes(html) {
    const template = document.createElement("template");
    template.innerHTML = html; // the server made it: escaped text in elements of its own
    return template.content;
  }

  async function part(pane, fields) {
    const query = new URLSearchParams({ find: logs.dataset.find, ...(single ? {} : { side: 1 }), ...fields });
    return live.answer(`${logs.dataset.root}logs/${encodeURIComponent(pane.task)}/part?${query}`);
  }

  // One request at a time for each log, in the order asked; a failure is shown, and the next scroll tries again.
  function alone(pane, act) {
    pane.turn = pane.turn.then(act).catch((error) => { pane.status.textContent = `not reachable: ${error.message}`; });
    return pane.turn;
  }

  // New lines replace the line that had no end yet; where another attempt begins, it stays as it was.
  function append(pane, html, restarted = false) {
    if (!html) return;
    pane.lines.querySelectorAll(restarted ? ".none" : ".open, .none").forEach((row) => row.remove());
    pane.lines.querySelectorAll(".open").forEach((row) => row.classList.remove("open"));
    pane.lines.append(nodes(html));
    if (count(pane) <= MOST) return;
    const height = pane.log.scrollHeight;
    while (count(pane) > MOST) pane.lines.firstElementChild.remove();
    const first = pane.lines.querySelector(".line");
    if (first) [, pane.first, pane.begin] = first.id.match(/b(\d+)-(\d+)$/).map(Number);
    if (!pane.following) pane.log.scrollTop -= height - pane.log.scrollHeight;
  }

  async function earlier(pane) {
    const before = pane.begin;
    const answer = await part(pane, { attempt: pane.first, before });
    pane.begin = before === answer.begin ? 0 : answer.begin;
    const height = pane.log.scrollHeight, top = pane.log.scrollTop;
    pane.lines.prepend(nodes(answer.html));
    pane.log.scrollTop = top + pane.log.scrollHeight - height;
    if (count(pane) > MOST) {
      pane.last = false;
      while (count(pane) > MOST) pane.lines.lastElementChild.remove();
      const [, attempt, position] = [...pane.lines.querySelectorAll(".line")].pop().id.match(/b(\d+)-(\d+)$/).map(Number);
      [pane.attempt, pane.end] = [attempt, position];
      pane.lines.lastElementChild.remove();
    }
  }

  async function later(pane) {
    const answer = await part(pane, { attempt: pane.attempt, after: pane.end });
    append(pane, answer.html);
    [pane.end, pane.last] = [answer.end, answer.last];
    if (pane.last && !answer.over && bottom(pane) < NEAR) follow(pane, true);
  }

  // Fetch what a scroll has come near to. Of scrolls during a request, one more look afterwards takes care.
  function fetchNear(pane) {
    if (pane.near) return;
    pane.near = true;
    alone(pane, async () => {
      pane.near = false;
      if (pane.log.scrollTop < NEAR && pane.begin > 0) await earlier(pane);
      if (!pane.last && bottom(pane) < NEAR) await later(pane);
    });
  }

  async function theEnd(pane) {
    await alone(pane, async () => {
      if (pane.last) return;
      const answer = await part(pane, { attempt: pane.attempt });
      pane.lines.replaceChildren(nodes(answer.html));
      [pane.first, pane.begin, pane.end, pane.last] = [pane.attempt, answer.begin, answer.end, answer.last];
    });
    const now = performance.now();
    pane.settled = now - pane.moved < 300 ? now + 500 : 0; // a scroll that is still under way does not end what was asked for
    toEnd(pane);
    if (!pane.over) follow(pane, true);
  }

  async function theBeginning(pane) {
    follow(pane, false);
    await alone(pane, async () => {
      if (pane.begin === 0) return;
      const answer = await part(pane, { attempt: pane.first, after: 0 });
      pane.lines.replaceChildren(nodes(answer.html));
      [pane.attempt, pane.begin, pane.end, pane.last] = [pane.first, 0, answer.end, answer.last];
    });
    pane.log.scrollTop = 0;
  }

  // -- new lines --

  function news(pane, answer) {
    append(pane, answer.html, answer.restarted);
    [pane.attempt, pane.end] = [answer.attempt, answer.end];
    pane.log.dataset.attempt = answer.attempt;
    if (answer.over) {
      pane.over = true;
      follow(pane, false);
      pane.status.textContent = "this is the end of the log";
    }
    if (answer.html) toEnd(pane); // without new lines, a scroll up that begins now goes on
  }

  function follow(pane, is) {
    if (is === pane.following || (is && (pane.over || !pane.last))) return;
    pane.following = is;
    pane.button.setAttribute("aria-pressed", String(is));
    pane.button.textContent = is ? "Following" : "Follow";
    pane.button.hidden = pane.over;
    pane.status.textContent = is ? "" : "paused: press f, or scroll to the end, to follow";
    if (is) toEnd(pane);
    restart();
  }

  // Without a stream: what came of each log that is followed. Returns whether there is more.
  async function ask() {
    let hasMore = false;
    for (const pane of panes) {
      const before = pane.end;
      const answer = pane.following && await part(pane, { attempt: pane.attempt, after: before, follow: 1 });
      if (!answer || !pane.following || pane.end !== before) continue; // the reader has gone elsewhere meanwhile: the next question brings it
      news(pane, answer);
      hasMore ||= pane.end - before > 60000;
    }
    return hasMore;
  }

  const followed = () => panes.filter((pane) => pane.following);

  function address() {
    const places = followed().map((pane) => `${pane.task},${pane.attempt},${pane.end}`).join(" ");
    return places && `${logs.dataset.root}logs/stream?${new URLSearchParams({ places, find: logs.dataset.find, ...(single ? {} : { side: 1 }) })}`;
  }

  // The stream serves all logs that are followed, and begins anew where that changes.
  function show(event) {
    const answer = JSON.parse(event.data);
    news(followed()[answer.pane], answer);
  }

  // -- readers --

  function scrolled(pane) {
    pane.moved = performance.now();
    if (pane.following && bottom(pane) > 40) {
      if (performance.now() < pane.settled) toEnd(pane);
      else follow(pane, false);
    }
    else if (!pane.following && pane.last && bottom(pane) < 4) follow(pane, true);
    fetchNear(pane);
  }

  let current = -1;
  function match(step) {
    const hits = [...logs.querySelectorAll(".hit")];
    if (!hits.length && !logs.dataset.find) return document.querySelector("input[type=search]").focus();
    hits[current]?.classList.remove("current");
    if (current < 0) current = hits.findIndex((hit) => hit.closest(".here")) - (step < 0 ? 0 : 1);
    current += step;
    if (hits[current]) {
      hits[current].classList.add("current");
      follow(panes[0], false);
      return toMiddle(panes[0], hits[current]);
    }
    const pane = panes[0];
    const query = { attempt: step > 0 ? pane.attempt : pane.first, find: logs.dataset.find };
    location.search = new URLSearchParams(step > 0 ? { ...query, from: pane.end } : { ...query, back: 1, to: pane.begin });
  }

  function wrap() {
    const is = logs.classList.toggle("unwrapped");
    document.querySelector("a.wrap").textContent = is ? "wrap lines" : "do not wrap lines";
  }

  const keys = {
    n: () => match(1), N: () => match(-1), w: wrap,
    g: () => panes.forEach(theBeginning), G: () => panes.forEach(theEnd),
    f: () => panes.forEach((pane) => (pane.following ? follow(pane, false) : theEnd(pane))),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (event.key === "/") document.querySelector("input[type=search]").focus();
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  });
  document.querySelector("a.wrap").addEventListener("click", (event) => { event.preventDefault(); wrap(); });

  const restart = live.keep({ isStreamed: "live" in logs.dataset, address, ask, events: { log: show } });
  document.querySelector(".keys")?.removeAttribute("hidden");
  for (const pane of panes) {
    pane.log.classList.remove("tail"); // that showed the end without scripts
    pane.button.hidden = pane.over;
    pane.button.addEventListener("click", () => (pane.following ? follow(pane, false) : theEnd(pane)));
    const here = pane.lines.querySelector(".here");
    if (here) toMiddle(pane, here);
    else if (pane.last) toEnd(pane);
    if (pane.last && !here) follow(pane, true);
    let waits = false;
    pane.log.addEventListener("scroll", () => {
      if (waits) return;
      waits = true;
      requestAnimationFrame(() => { waits = false; scrolled(pane); });
    });
  }
})();
