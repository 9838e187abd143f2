/* A strict reader of JSON (RFC 8259), made for looking a few values up: nothing is built, and no byte beyond the text
 * is ever read. A `struct json` is a value, by where its text is.
 */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>

struct json {
    const char *at, *end;
};

bool json_read(const char *text, size_t size, struct json *value); /* whether the text is one value and no more */
bool json_member(struct json object, const char *name, struct json *value); /* the last of that name, as others read */
bool json_member_any_case(struct json object, const char *name, struct json *value); /* the same; A is a, as Go reads */
bool json_string(struct json value, char *text, size_t room);      /* unescaped; false: no string, longer, has a NUL */
bool json_first(struct json array, struct json *value);
bool json_next(struct json array, struct json *value);
bool json_whole(struct json value, long *number); /* false: not a whole number, or out of range */

#endif
