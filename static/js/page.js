import { keepCurrent, startClock } from "./live.js";
startClock();
keepCurrent();
