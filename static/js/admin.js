// A page of the admin with a part that keeps itself current.

import { keepCurrent } from "./live.js";
keepCurrent();
