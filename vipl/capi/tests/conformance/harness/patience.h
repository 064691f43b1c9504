/* How long a test waits for what must come. */
#ifndef PATIENCE_H
#define PATIENCE_H

enum { WAIT_MS = 30000 }; /* long: only a failing test waits for it */

#endif
