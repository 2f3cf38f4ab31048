import { keepCurrent, localTimes, startClock } from "./live.js";

localTimes(document);
startClock();
keepCurrent();
