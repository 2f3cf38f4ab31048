// The form for a new node: preselect the visitor's time zone, and focus the list of errors if there is one.

import { startClock } from "./live.js";

startClock();
const select = document.querySelector("select[name=timezone]");
const timeZone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const isDefault = select?.value === "UTC" && select.querySelector("option[selected]")?.value === "UTC";
const problems = document.getElementById("problems");
if (isDefault && !problems && [...select.options].some((option) => option.value === timeZone)) select.value = timeZone;
problems?.focus();
