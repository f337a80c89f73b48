/* What tells a dead letter's kind: the consumer's own verdict has this in front of its reason. */
#ifndef FRESHET_MODULES_NOTIFICATION_DEAD_LETTERS_H
#define FRESHET_MODULES_NOTIFICATION_DEAD_LETTERS_H

#define NOTIFICATION_NO_EVENT "not an event of entitlements: "

#endif
