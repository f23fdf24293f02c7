// Which policy takes which decisions, unit by unit, and what was counted of it.

import { made } from "./transcript.js";
import { eventInWords } from "./words.js";

export class Policies {
  // `page`: the list
  constructor(page) {
    this.page = page;
    this.shown = "";
  }

  take({ policies }) {
    const shown = JSON.stringify(policies);
    if (shown === this.shown) return;
    this.shown = shown;
    const units = new Map();
    for (const { unit, ...policy } of policies) units.set(unit, [...(units.get(unit) ?? []), policy]);
    const groups = new Map(); // units of which the same is told are told together
    for (const [unit, its] of units) {
      const told = JSON.stringify(its);
      groups.set(told, { its, names: [...(groups.get(told)?.names ?? []), unit.replaceAll("+", " + ") || "all units"] });
    }
    this.page.replaceChildren(...[...groups.values()].map(({ names, its }) => group(names, its)));
  }
}

function group(names, policies) {
  const group = made("li");
  const list = made("ul");
  list.append(...policies.map(line));
  group.append(made("span", "", names.join(", ")), list);
  return group;
}

function line({ policy, decisions, suspended, observed, events }) {
  const line = made("li", "", `${decisions.join(", ")}: `);
  line.append(made("b", "", policy));
  if (suspended.length) line.append(`; it was too slow, and the baseline decides ${suspended.join(", ")}`);
  if (observed.length) line.append(`; it is observed, and the baseline decides ${observed.join(", ")}`);
  const counted = Object.entries(events).filter(([, times]) => times).map(([event, times]) => eventInWords(event, times));
  if (counted.length) line.append(made("span", "quiet", counted.join(" · ")));
  return line;
}
