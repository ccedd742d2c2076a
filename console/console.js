// The pages work without this script, but for passkeys. It shows and takes times in the reader's zone,
// keeps the progress of an analysis up to date, lets the map be moved by hand, takes a password token
// from a link, and asks for passkeys.
"use strict";

function showTimes(part) {
  for (const time of part.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (isNaN(at)) continue;
    time.title = time.textContent;
    time.textContent = at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  }
}

const zone = new Intl.DateTimeFormat().resolvedOptions().timeZone;
const isDraftTime = text => text.startsWith("9999");
const pad = (n, width = 2) => String(n).padStart(width, "0");

// Returns a time in the reader's zone as inputs have it, with that text between the day and the hour.
function localText(at, between) {
  return `${pad(at.getFullYear(), 4)}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}${between}${pad(at.getHours())}:${pad(at.getMinutes())}`;
}

// Lets a form show and take times in the reader's zone. It sends UTC, which is what the page has without this script.
function takeTimes() {
  const show = (input, at, between) => {
    const label = document.querySelector(`label[for="${input.id}"]`);
    label.textContent = label.textContent.replace("UTC", `your time, ${zone}`);
    if (!isNaN(at) && !isDraftTime(input.value)) input.value = input.defaultValue = localText(at, between);
  };
  // A time that nobody touched is sent as it came: an hour of autumn comes twice in a zone.
  const send = (input, original, value) => input.form.addEventListener("formdata", e => {
    const isUntouched = original && input.value === input.defaultValue;
    const utc = isUntouched ? original : value(input.value.trim());
    if (utc) e.formData.set(input.name, utc);
  });
  for (const input of document.querySelectorAll("input[type=datetime-local]")) {
    const original = input.value;
    show(input, new Date(original + "Z"), "T");
    send(input, original, text => !isDraftTime(text) && text && new Date(text).toISOString().slice(0, 16));
  }
  // Those of the audit log are days or times. An end that is a day is the end of that day.
  for (const input of document.querySelectorAll(".filter input[name=since], .filter input[name=until]")) {
    const original = input.value;
    const isTime = original.endsWith("Z");
    show(input, new Date(isTime ? original : NaN), " ");
    send(input, isTime && original, text => {
      const parts = /^(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d))?$/.exec(text);
      if (!parts) return text;
      const [, year, month, day, hour, minute] = parts;
      const isWholeDay = hour === undefined && input.name === "until";
      const at = new Date(year, month - 1, Number(day) + isWholeDay, hour || 0, minute || 0);
      return at.toISOString().slice(0, 19) + "Z";
    });
  }
}

// Replaces the element of that id by the one of another page.
async function replace(id, url, signal) {
  const answer = await fetch(url, { headers: { Accept: "text/html" }, signal });
  const text = await answer.text();
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById(id);
  const old = document.getElementById(id);
  if (answer.status >= 500) throw new Error(answer.statusText);
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

// Lets the map follow the hand: the picture moves at once, and the server draws the new part after it.
function useMap() {
  const section = document.getElementById("map"), svg = section?.querySelector(".map svg");
  if (!svg) return;
  const picture = svg.querySelector(".moving"), relief = svg.querySelector("image"), pointers = new Map();
  let size = 1, x = 0, y = 0, travel = 0, timer, loading;
  svg.classList.add("live");
  section.classList.add("live");
  relief?.addEventListener("load", () => { relief.dataset.drawn = "1"; });

  const at = e => new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const stop = () => { clearTimeout(timer); loading?.abort(); };
  // Moves what lies at one point to another, and makes it larger by a factor.
  const move = (from, to, factor) => {
    x = to.x - (from.x - x) * factor;
    y = to.y - (from.y - y) * factor;
    size *= factor;
    picture.setAttribute("transform", `translate(${x} ${y}) scale(${size})`);
  };
  const load = async (url, focus, isPlace) => {
    stop();
    if (relief && !relief.dataset.drawn) relief.remove(); // the server draws one picture at a time
    loading = new AbortController();
    svg.classList.add("busy");
    try {
      if (!await replace("map", url, loading.signal)) return;
    } catch (e) {
      if (e.name === "AbortError") return;
      move({ x: 0, y: 0 }, { x: -x / size, y: -y / size }, 1 / size);
      svg.classList.remove("busy");
      section.querySelector(".hint").textContent = "The map could not be loaded. Try again.";
      return;
    }
    history.replaceState(null, "", document.querySelector("#map .map svg").dataset.part + "#map");
    useMap();
    if (focus) document.querySelector(focus)?.focus({ preventScroll: true });
    if (isPlace) document.getElementById("there")?.scrollIntoView({ block: "nearest" });
  };
  const ask = (values, isPlace) => {
    const url = new URL(svg.dataset.part, location.href);
    for (const name in values) url.searchParams.set(name, values[name]);
    return load(url, "", isPlace);
  };
  // The middle of the frame is at 420, 330.
  const askMoved = wait => {
    stop();
    timer = setTimeout(() => ask({ "at.x": (420 - x) / size, "at.y": (330 - y) / size, scale: 1 / size }), wait);
  };

  const hand = () => {
    const all = [...pointers.values()], [a, b] = [all[0], all.at(-1)];
    return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, width: Math.hypot(a.x - b.x, a.y - b.y) || 1 };
  };
  svg.addEventListener("pointerdown", e => {
    if (e.button > 0) return;
    if (!pointers.size) travel = 0;
    pointers.set(e.pointerId, at(e));
  });
  svg.addEventListener("pointermove", e => {
    if (!pointers.has(e.pointerId)) return;
    if (e.pointerType === "mouse" && !e.buttons) return leave(e); // the button was released outside
    const before = hand();
    pointers.set(e.pointerId, at(e));
    const after = hand();
    travel += Math.hypot(after.x - before.x, after.y - before.y) + Math.abs(after.width - before.width);
    if (travel < 6) return; // a click
    stop();
    svg.setPointerCapture(e.pointerId);
    move(before, after, after.width / before.width);
  });
  const leave = e => {
    if (!pointers.delete(e.pointerId) || pointers.size) return;
    if (x || y || size !== 1) askMoved(0);
  };
  svg.addEventListener("pointerup", leave);
  svg.addEventListener("pointercancel", leave);
  svg.addEventListener("dragstart", e => e.preventDefault());

  svg.addEventListener("click", e => {
    if (e.ctrlKey || e.metaKey || e.shiftKey) return;
    e.preventDefault();
    const link = e.target.closest("a");
    const isMoved = x || y || size !== 1; // the new part is on its way
    if (e.detail === 0 && link) load(new URL(link.href.baseVal, location.href), "#there", true); // by the keyboard
    else if (travel < 6 && !isMoved) ask({ "at.x": at(e).x, "at.y": at(e).y }, true);
  });
  // The wheel alone scrolls the page. A trackpad sends many small steps, and Ctrl with each of a pinch.
  svg.addEventListener("wheel", e => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    const lines = e.deltaMode ? 20 : 1;
    move(at(e), at(e), Math.exp(-e.deltaY * lines / 300));
    askMoved(150);
  }, { passive: false });
  for (const link of section.querySelectorAll(".mapnav a")) {
    link.addEventListener("click", e => {
      e.preventDefault();
      load(new URL(link.href), `.mapnav a[aria-label="${link.getAttribute("aria-label")}"]`);
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

// Asks the browser for a passkey, or for a new one, and returns its answer as the server reads it.
// isAlone: the passkey is the only factor.
async function askPasskey({ isNew, isAlone, owner }) {
  const get = async path => {
    const response = await fetch("/api/v1/auth/passkeys" + path);
    const body = await response.json();
    if (response.status === 401) throw new Error("Your session has ended. Sign in again.");
    if (!response.ok) throw new Error(body.detail);
    return body;
  };
  const bytes = text => new TextEncoder().encode(text);
  const base64 = buffer => btoa(String.fromCharCode(...new Uint8Array(buffer)));
  const fromBase64 = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  // The server refuses the answer for another purpose. A new passkey has none.
  let purpose = "";
  if (!isNew) purpose = isAlone ? ":sign-in" : ":second-factor";
  const challenge = bytes((await get("/challenge")).challenge + purpose);
  let passkey;
  if (isNew) {
    // An authenticator would replace the passkey that it has for the same user.
    const known = (await get("")).items.map(p => ({ type: "public-key", id: fromBase64(p.credential_id) }));
    passkey = await navigator.credentials.create({ publicKey: {
      challenge,
      rp: { name: "Cairn" },
      user: { id: bytes(owner.user), name: owner.name, displayName: owner.name },
      pubKeyCredParams: [{ type: "public-key", alg: -7 }], // ES256
      excludeCredentials: known,
      authenticatorSelection: { residentKey: "required", requireResidentKey: true, userVerification: "required" },
    } });
  } else {
    const userVerification = isAlone ? "required" : "preferred";
    passkey = await navigator.credentials.get({ publicKey: { challenge, userVerification } });
  }
  const answer = passkey.response;
  return JSON.stringify({
    credential_id: base64(passkey.rawId),
    client_data: base64(answer.clientDataJSON),
    authenticator_data: base64(isNew ? answer.getAuthenticatorData() : answer.authenticatorData),
    proof: base64(isNew ? answer.getPublicKey() : answer.signature),
  });
}

// Lets a button fill a field of its form with the answer of a passkey. then is called after that.
function offerPasskey(button, field, { isNew, isAlone }, then) {
  button.hidden = !window.PublicKeyCredential;
  button.addEventListener("click", async () => {
    button.parentElement.querySelector("[role=alert]")?.remove();
    if (isNew && !button.form.reportValidity()) return;
    try {
      field.value = await askPasskey({ isNew, isAlone, owner: button.form.dataset });
      then();
    } catch (e) {
      const text = document.createElement("p");
      text.className = "error";
      text.setAttribute("role", "alert");
      text.textContent = e.name === "NotAllowedError" ? "No passkey was used. Try again." : e.message;
      button.after(text);
    }
  });
}

function usePasskeys() {
  for (const button of document.querySelectorAll("button[data-passkey]")) {
    const isNew = button.dataset.passkey === "create";
    const field = button.form.elements[isNew ? "passkey" : "otp"];
    offerPasskey(button, field, { isNew, isAlone: field.type === "hidden" }, () => button.form.requestSubmit());
  }
  // Somebody who has a passkey gets a button beside each field for a code.
  for (const field of document.querySelectorAll("main[data-has-passkey] form:not([action$='/confirm']) input[name=otp]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Use a passkey";
    field.after(button);
    offerPasskey(button, field, {}, () => { button.textContent = "Passkey used"; });
  }
}

// Shows that a form was sent, and drops the second click of a double click. The server acts once on a form that arrives
// twice, except on the login form.
addEventListener("submit", e => e.defaultPrevented || e.submitter?.classList.add("busy"));
addEventListener("click", e => e.detail > 1 && e.target.closest("button.busy") && e.preventDefault());
addEventListener("pageshow", () => document.querySelectorAll("button.busy").forEach(b => b.classList.remove("busy")));

showTimes(document);
takeTimes();
addTickAll();
takeToken();
usePasskeys();
follow();
useMap();
