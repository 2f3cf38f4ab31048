// A page without a script of its own.

import "./copy.js";
import { keepCurrent, startClock } from "./live.js";
startClock();
keepCurrent();
