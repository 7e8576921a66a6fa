// Keeps what an open page shows current: by a stream of server-sent events, or by asking again and again where it may not have one.
//
// A browser opens six connections to one server of HTTP/1.1. A stream holds one of them, so all tabs of a browser together have `STREAMS`,
// by Web Locks; each other tab asks, and takes the next stream that is free. A tab that nobody sees has no stream and asks nothing.
// Web Locks exist over TLS and on this machine alone: elsewhere all tabs ask.
"use strict";
const live = (() => {
  const STREAMS = 3;
  const AGAIN = 2000; // ms between two questions
  const SOON = 200; // ms, where the answer before said that there is more
  const PATIENCE = 20000; // ms for one answer
  const SILENCE = 25000; // ms; a server sends something each 10 s
  const sign = document.getElementById("offline");
  let heardAt = Date.now();

  function heard() {
    heardAt = Date.now();
    sign.hidden = true;
  }

  // Says why the page is not current, and since when. `isStranger`: whether to sign in again is the mend.
  function notHeard({ message, isStranger }) {
    const why = sign.querySelector(".why");
    if (why.textContent !== message) why.textContent = message;
    sign.querySelector("time").dateTime = new Date(heardAt).toISOString();
    sign.querySelector("a").hidden = !isStranger;
    sign.hidden = false;
  }

  // Returns the answer to a question. Throws an error that says why it did not come.
  async function answer(address) {
    let response;
    try {
      response = await fetch(address, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(PATIENCE) });
    } catch (error) {
      throw new Error(error.name === "TimeoutError" ? `the server gave no answer within ${PATIENCE / 1000} s` : "the server is not reachable");
    }
    if (response.ok) return response.json();
    if (response.status === 401) throw Object.assign(new Error("you are not signed in any more"), { isStranger: true });
    const text = await response.text();
    const isData = response.headers.get("Content-Type")?.startsWith("application/json");
    const words = isData ? JSON.parse(text).error : new DOMParser().parseFromString(text, "text/html").querySelector(".note.failed")?.textContent;
    throw new Error(words || `the server answered ${response.status}`);
  }

  // Resolves to a function that gives the stream back, or to null where all are taken.
  async function taken() {
    for (let number = 0; navigator.locks && number < STREAMS; number += 1) {
      const release = await new Promise((done) => {
        navigator.locks.request(`trainmaster-stream-${number}`, { ifAvailable: true }, (lock) => lock && new Promise(done)).then(() => done(null), () => done(null));
      });
      if (release) return release;
    }
    return null;
  }

  // Keeps one page current. `isStreamed`: whether the server gives it streams; `address()`: of its stream, "" while there is nothing to
  // follow; `events`: name -> what to do with such an event; `ask()`: asks once, and returns whether there is more.
  // Returns the function that begins anew, for a page whose address has changed.
  function keep({ isStreamed, address, events, ask }) {
    let source = null, release = null, timer = 0, turn = 0, openedAt = 0;
    let isDoubtful = false; // the last stream broke off: an answer says why, or that all is well again
    let isHeldBack = false; // nothing came by the stream, as behind a proxy that collects what it passes on

    function end() {
      turn += 1; // what is under way of an earlier turn changes nothing more
      clearTimeout(timer);
      source?.close();
      release?.();
      source = release = null;
    }

    function again(after = 0) {
      end();
      timer = setTimeout(begin, after);
    }

    async function begin() {
      if (document.hidden || !address()) return;
      const mine = turn;
      const free = isStreamed && !isDoubtful && !isHeldBack ? await taken() : null;
      if (mine !== turn) return free?.();
      if (free) return open(free);
      let after = AGAIN;
      try {
        const hasMore = await ask();
        if (mine !== turn) return;
        if (hasMore) after = SOON;
        isDoubtful = false;
        heard();
      } catch (error) {
        if (mine !== turn) return;
        notHeard(error);
      }
      again(after);
    }

    function open(free) {
      const mine = source = new EventSource(address());
      release = free;
      openedAt = Date.now();
      const on = (name, act) => mine.addEventListener(name, (event) => { if (source === mine) act(event); });
      on("open", heard);
      on("quiet", heard);
      for (const [name, act] of Object.entries(events)) on(name, (event) => { heard(); act(event); });
      on("error", breakOff);
    }

    function breakOff() {
      isDoubtful = true;
      again();
    }

    setInterval(() => {
      if (!source || Date.now() - Math.max(heardAt, openedAt) < SILENCE) return;
      isHeldBack = true;
      breakOff();
    }, 1000);
    document.addEventListener("visibilitychange", () => {
      isHeldBack = false;
      if (document.hidden) end();
      else again();
    });
    again();
    return () => again();
  }

  return { keep, answer };
})();
