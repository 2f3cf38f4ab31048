// Script of pages that have none of their own.

import "./copy.js";
import { startClock, startPolling } from "./live.js";
startClock();
startPolling();
