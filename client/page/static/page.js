"use strict";
const at = (id) => document.getElementById(id);
const made = (tag, text, kind) => {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
};
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
let shown = "";
let confirmed = null;

async function act(name, body) {
  const answer = await fetch(`/do/${name}`, { method: "POST", body: JSON.stringify(body || {}) });
  at("said").textContent = (await answer.json()).said;
  at("said").className = answer.ok ? "" : "bad";
  await look();
}

function ask(question, then) {
  at("question").textContent = question;
  confirmed = then;
  at("sure").showModal();
}

function article(run) {
  const whole = document.createElement("article");
  whole.append(made("h3", run.name), made("p", run.line));
  if (run.last) whole.append(made("p", `joined ${run.joined}, sat out ${run.sat_out}, failed ${run.failed}; ` +
    `${run.seconds.toFixed(1)} s of work; ${megabytes(run.bytes_up)} up, ${megabytes(run.bytes_down)} down`));
  if (run.judged) whole.append(made("p", run.judged, run.met ? "good" : ""));
  if (run.goodwill) whole.append(made("p", run.goodwill));
  if (run.can_leave) {
    const button = made("button", "Leave for good");
    button.type = "button";
    button.setAttribute("aria-label", `Leave ${run.name} for good`);
    button.addEventListener("click", () =>
      ask(`Leave ${run.name} for good? This device trains for it no more.`, () => act("leave", { run: run.run })));
    whole.append(button);
  }
  return whole;
}

async function look() {
  let text;
  try {
    const answer = await fetch("/data.json");
    if (!answer.ok) throw new Error(answer.status);
    text = await answer.text();
  } catch {
    at("lost").hidden = false;
    return;
  }
  at("lost").hidden = true;
  if (text === shown) return;
  shown = text;
  const data = JSON.parse(text);
  at("client").textContent = data.client;
  at("status").textContent = data.line;
  at("battery").textContent = data.battery === null ? "" : `battery ${data.battery} %`;
  at("pause").hidden = data.paused;
  at("resume").hidden = !data.paused;
  at("none").hidden = data.runs.length > 0;
  at("runs").replaceChildren(...data.runs.map(article));
  at("prefers").replaceChildren(...(data.prefers.length ? data.prefers : ["none yet"]).map((line) => made("li", line)));
}

async function limits() {
  const data = await (await fetch("/limits.json")).json();
  at("problem").textContent = data.problem;
  at("fields").replaceChildren(...data.limits.map((limit) => {
    const label = made("label", `${limit.key} `);
    const input = document.createElement("input");
    input.name = limit.key;
    if (typeof limit.value === "boolean") {
      input.type = "checkbox";
      input.checked = limit.value;
    } else {
      input.type = "text";
      input.inputMode = typeof limit.value === "number" ? "decimal" : "text";
      input.value = limit.value;
    }
    input.dataset.kind = typeof limit.value;
    label.append(input, made("span", limit.unit ? `${limit.help} (${limit.unit})` : limit.help));
    if (limit.instead !== null) label.append(made("strong", ` ${limit.instead} counts, by --limits`));
    return label;
  }));
}

const valueOf = (input) => {
  if (input.dataset.kind === "boolean") return input.checked;
  const text = input.value.trim();
  return input.dataset.kind === "number" && text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
};

at("pause").addEventListener("click", () => act("pause"));
at("resume").addEventListener("click", () => act("resume"));
at("erase").addEventListener("click", () =>
  ask("Forget requirements, models and what was done? The client-id and the noise key stay.", () => act("erase")));
at("no").addEventListener("click", () => at("sure").close());
at("yes").addEventListener("click", () => { at("sure").close(); confirmed(); });
at("limits").addEventListener("submit", (event) => {
  event.preventDefault();
  const inputs = [...at("fields").querySelectorAll("input")];
  act("limits", Object.fromEntries(inputs.map((input) => [input.name, valueOf(input)])));
});
look();
limits();
setInterval(() => { if (!document.hidden) look(); }, 1000);
