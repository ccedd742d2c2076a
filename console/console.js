// The pages work without this script. It shows times in the reader's zone, keeps the progress of an
// analysis up to date, lets the map be moved by wheel and drag, and takes a password token from a link.
"use strict";

function showTimes(part) {
  for (const time of part.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (isNaN(at)) continue;
    time.title = time.textContent;
    time.textContent = at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  }
}

// Replaces the element of that id by the one of another page.
async function replace(id, url) {
  const answer = await fetch(url, { headers: { Accept: "text/html" } });
  const text = await answer.text();
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById(id);
  const old = document.getElementById(id);
  if (!answer.ok || !fresh || !old) return location.assign(url);
  const part = document.adoptNode(fresh);
  old.replaceWith(part);
  showTimes(part);
  return part;
}

// Keeps the progress up to date. In the end it loads the whole page, which lists the changes.
function follow() {
  const page = document.querySelector("#live")?.dataset.live;
  if (page) {
    setTimeout(() => replace("live", page).then(() => {
      document.querySelector("#live[data-live]") ? follow() : location.replace(page);
    }, follow), 1500);
  }
}

function moveMap(form, values) {
  if (form.classList.contains("busy")) return;
  form.classList.add("busy");
  const url = new URL(form.getAttribute("action"), location.href);
  url.search = new URLSearchParams({ bbox: form.elements.bbox.value, ...values });
  replace("map", url).then(() => {
    history.replaceState(null, "", url);
    useMap();
    if (!values.move) document.querySelector("#map h3")?.scrollIntoView({ block: "center" });
  }, () => form.classList.remove("busy"));
}

// The picture is as wide as the page; the server counts in pixels of the picture itself.
function useMap() {
  const form = document.querySelector("form.map"), picture = form?.querySelector("input[type=image]");
  if (!form) return;
  form.classList.add("fluid");
  const at = (x, y) => {
    const box = picture.getBoundingClientRect(), scale = 1060 / box.width;
    return { "at.x": Math.round((x - box.left) * scale), "at.y": Math.round((y - box.top) * scale) };
  };
  let from = null, dragged = false;
  picture.addEventListener("pointerdown", e => { from = [e.clientX, e.clientY]; dragged = false; });
  picture.addEventListener("dragstart", e => e.preventDefault());
  picture.addEventListener("pointerup", e => {
    if (!from || Math.hypot(e.clientX - from[0], e.clientY - from[1]) < 8) return;
    dragged = true;
    const box = picture.getBoundingClientRect(), scale = 1060 / box.width;
    const middle = [420, 330]; // of the map in the picture
    moveMap(form, { move: "pan", "at.x": Math.round(middle[0] - (e.clientX - from[0]) * scale),
      "at.y": Math.round(middle[1] - (e.clientY - from[1]) * scale) });
  });
  picture.addEventListener("click", e => {
    e.preventDefault();
    if (!dragged && e.detail > 0) moveMap(form, at(e.clientX, e.clientY));
  });
  // The wheel alone scrolls the page. A trackpad sends many small steps, and Ctrl with each of a pinch.
  let turned = 0;
  picture.addEventListener("wheel", e => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    turned += e.deltaY;
    if (Math.abs(turned) < 40) return;
    moveMap(form, { move: turned < 0 ? "in" : "out", ...at(e.clientX, e.clientY) });
    turned = 0;
  }, { passive: false });
  for (const link of document.querySelectorAll(".mapnav a")) {
    link.addEventListener("click", e => {
      e.preventDefault();
      replace("map", link.href).then(() => {
        history.replaceState(null, "", link.href);
        useMap();
        const same = a => a.textContent === link.textContent;
        [...document.querySelectorAll(".mapnav a")].find(same)?.focus();
      }, () => location.assign(link.href));
    });
  }
}

// Moves the token of a link to /set-password into the form, and out of the address and the history.
function takeToken() {
  const field = document.querySelector("form[action='/set-password'] input[name=token]");
  if (!field || !location.hash.startsWith("#cairn_pw_")) return;
  field.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
}

// A form sends only its own ticks: those of the other roles would be lost without a word.
addEventListener("submit", e => {
  const isLost = box => box.name && box.form !== e.target && box.checked !== box.defaultChecked;
  const loses = [...document.querySelectorAll("input[type=checkbox]")].some(isLost);
  if (loses && !confirm("Ticks elsewhere on this page are not saved, and would be lost. Go on?")) e.preventDefault();
});

// Adds a box to the head of each list of boxes, which ticks all of them.
function addTickAll() {
  for (const head of document.querySelectorAll("th.all")) {
    const boxes = head.closest("table").querySelectorAll("td input[type=checkbox]");
    const all = document.createElement("input");
    all.type = "checkbox";
    all.title = `Select all ${boxes.length}`;
    all.setAttribute("aria-label", all.title);
    all.addEventListener("change", () => boxes.forEach(box => { box.checked = all.checked; }));
    head.append(all);
  }
}

// Shows that a form was sent. The server acts once, however often it is sent.
addEventListener("submit", e => e.defaultPrevented || e.submitter?.classList.add("busy"));
addEventListener("pageshow", () => document.querySelectorAll("button.busy").forEach(b => b.classList.remove("busy")));

showTimes(document);
addTickAll();
takeToken();
follow();
useMap();
