// The form: the reader's own time zone to begin with, and the keyboard where something is missing.

import { startClock } from "./live.js";

startClock();
const zone = document.querySelector("select[name=timezone]");
const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone?.value === "UTC" && zone.querySelector("option[selected]")?.value === "UTC" && !document.getElementById("problems")) {
  if ([...zone.options].some((option) => option.value === here)) zone.value = here;
}
document.getElementById("problems")?.focus();
