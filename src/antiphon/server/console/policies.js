// Which policy takes which decisions of each unit, and what was counted of it.

import { made } from "./transcript.js";

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
    this.page.replaceChildren(...policies.map((policy) => this.line(policy)));
  }

  line({ unit, policy, decisions, suspended, observed, events }) {
    const line = made("li");
    line.append(made("b", "", unit || "all units"), ` ${policy} decides ${decisions.join(", ")}`);
    if (suspended.length) line.append(`; it was too slow, and the baseline decides ${suspended.join(", ")}`);
    if (observed.length) line.append(`; it is observed, and the baseline decides ${observed.join(", ")}`);
    const counted = Object.entries(events).map(([event, count]) => `${event} ${count}`).join(", ");
    if (counted) line.append(made("span", "quiet", ` (${counted})`));
    return line;
  }
}
