// Script of admin pages with an element that updates itself.

import { startPolling } from "./live.js";
startPolling();
