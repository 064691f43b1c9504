/* Timeout of the tests. */
#ifndef TIMEOUT_H
#define TIMEOUT_H

enum { WAIT_MS = 30000 }; /* long, because it expires only in a failing test */

#endif
