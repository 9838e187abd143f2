/* By descent over a text in memory, to a depth that nothing a runtime writes comes near. */
#include "json.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { DEPTH = 64, NAME_MOST = 128 };

static const char *value_end(const char *at, const char *end, int depth);

static const char *blank(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

static int hex(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* The four digits of \uXXXX; -1: they are not four digits. */
static int unit(const char *at, const char *end)
{
    int code = 0;
    if (end - at < 4)
        return -1;
    for (int each = 0; each < 4; each++) {
        int digit = hex(at[each]);
        if (digit < 0)
            return -1;
        code = code * 16 + digit;
    }
    return code;
}

/* After the closing quote; NULL: no string. */
static const char *string_end(const char *at, const char *end)
{
    if (at >= end || *at != '"')
        return NULL;
    for (at++; at < end; at++) {
        if (*at == '"')
            return at + 1;
        if ((unsigned char)*at < ' ')
            return NULL;
        if (*at != '\\')
            continue;
        if (++at >= end || !strchr("\"\\/bfnrtu", *at) || !*at)
            return NULL;
        if (*at == 'u') {
            if (unit(at + 1, end) < 0)
                return NULL;
            at += 4;
        }
    }
    return NULL;
}

static const char *digits_end(const char *at, const char *end)
{
    const char *from = at;
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at == from ? NULL : at;
}

static const char *number_end(const char *at, const char *end)
{
    if (at < end && *at == '-')
        at++;
    const char *first = at;
    if (!(at = digits_end(at, end)) || (*first == '0' && at - first > 1))
        return NULL;
    if (at < end && *at == '.' && !(at = digits_end(at + 1, end)))
        return NULL;
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '+' || *at == '-'))
            at++;
        at = digits_end(at, end);
    }
    return at;
}

static const char *word_end(const char *at, const char *end)
{
    static const char *const WORDS[] = {"true", "false", "null"};
    for (size_t each = 0; each < 3; each++) {
        size_t size = strlen(WORDS[each]);
        if ((size_t)(end - at) >= size && memcmp(at, WORDS[each], size) == 0)
            return at + size;
    }
    return NULL;
}

/* After the closing bracket of an object or an array; NULL: it is none. */
static const char *group_end(const char *at, const char *end, int depth)
{
    bool object = *at == '{';
    char close = object ? '}' : ']';
    if (depth >= DEPTH)
        return NULL;
    at = blank(at + 1, end);
    if (at < end && *at == close)
        return at + 1;
    while (at < end) {
        if (object) {
            if (!(at = string_end(at, end)))
                return NULL;
            at = blank(at, end);
            if (at >= end || *at != ':')
                return NULL;
            at = blank(at + 1, end);
        }
        if (!(at = value_end(at, end, depth + 1)))
            return NULL;
        at = blank(at, end);
        if (at < end && *at == close)
            return at + 1;
        if (at >= end || *at != ',')
            return NULL;
        at = blank(at + 1, end);
    }
    return NULL;
}

static const char *value_end(const char *at, const char *end, int depth)
{
    if (at >= end)
        return NULL;
    if (*at == '{' || *at == '[')
        return group_end(at, end, depth);
    if (*at == '"')
        return string_end(at, end);
    if (*at == '-' || (*at >= '0' && *at <= '9'))
        return number_end(at, end);
    return word_end(at, end);
}

bool json_read(const char *text, size_t size, struct json *value)
{
    value->at = blank(text, text + size);
    value->end = value_end(value->at, text + size, 0);
    return value->end && blank(value->end, text + size) == text + size;
}

bool json_first(struct json array, struct json *value)
{
    if (array.at >= array.end || *array.at != '[')
        return false;
    value->at = blank(array.at + 1, array.end);
    return *value->at != ']' && (value->end = value_end(value->at, array.end, 0));
}

bool json_next(struct json array, struct json *value)
{
    const char *at = blank(value->end, array.end);
    if (at >= array.end || *at != ',')
        return false;
    value->at = blank(at + 1, array.end);
    return (value->end = value_end(value->at, array.end, 0));
}

static bool member(struct json object, const char *name, int (*differ)(const char *, const char *), struct json *value)
{
    char found[NAME_MOST];
    bool any = false;
    if (object.at >= object.end || *object.at != '{')
        return false;
    const char *at = blank(object.at + 1, object.end);
    while (at < object.end && *at == '"') {
        struct json key = {at, string_end(at, object.end)};
        at = blank(key.end, object.end) + 1; /* json_read has seen the colon */
        struct json now = {blank(at, object.end), NULL};
        now.end = value_end(now.at, object.end, 0);
        if (json_string(key, found, sizeof found) && differ(found, name) == 0) {
            *value = now;
            any = true;
        }
        at = blank(now.end, object.end);
        if (*at != ',')
            break;
        at = blank(at + 1, object.end);
    }
    return any;
}

bool json_member(struct json object, const char *name, struct json *value)
{
    return member(object, name, strcmp, value);
}

bool json_member_any_case(struct json object, const char *name, struct json *value)
{
    return member(object, name, strcasecmp, value);
}

/* A code point in UTF-8; how many bytes. */
static size_t utf8(unsigned code, char *bytes)
{
    if (code < 0x80) {
        bytes[0] = (char)code;
        return 1;
    }
    size_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char LEAD[] = {0, 0xC0, 0xE0, 0xF0};
    bytes[0] = (char)(LEAD[more] | (code >> (6 * more)));
    for (size_t each = 1; each <= more; each++)
        bytes[each] = (char)(0x80 | ((code >> (6 * (more - each))) & 0x3F));
    return more + 1;
}

/* What an escape stands for, `at` its letter; half a pair becomes U+FFFD. Leaves `at` at its last letter. */
static unsigned escaped(const char **at, const char *end)
{
    static const char LETTERS[] = "\"\\/bfnrt", STAND_FOR[] = "\"\\/\b\f\n\r\t";
    if (**at != 'u')
        return (unsigned char)STAND_FOR[strchr(LETTERS, **at) - LETTERS];
    unsigned code = (unsigned)unit(*at + 1, end);
    *at += 4;
    if (code < 0xD800 || code > 0xDFFF)
        return code;
    int low = end - *at > 6 && (*at)[1] == '\\' && (*at)[2] == 'u' ? unit(*at + 3, end) : -1;
    if (code > 0xDBFF || low < 0xDC00 || low > 0xDFFF)
        return 0xFFFD;
    *at += 6;
    return 0x10000 + ((code - 0xD800) << 10) + ((unsigned)low - 0xDC00);
}

bool json_string(struct json value, char *text, size_t room)
{
    size_t used = 0;
    if (value.at >= value.end || *value.at != '"')
        return false;
    for (const char *at = value.at + 1; at < value.end - 1; at++) {
        char bytes[4];
        size_t size = 1;
        bytes[0] = *at;
        if (*at == '\\') {
            at++;
            unsigned code = escaped(&at, value.end);
            if (code == 0)
                return false;
            size = utf8(code, bytes);
        }
        if (used + size >= room)
            return false;
        memcpy(text + used, bytes, size);
        used += size;
    }
    if (used >= room)
        return false;
    text[used] = 0;
    return true;
}

bool json_whole(struct json value, long *number)
{
    long sum = 0;
    const char *at = value.at;
    if (at >= value.end || value.end - at > 9 || *at < '0' || *at > '9')
        return false;
    for (; at < value.end; at++) {
        if (*at < '0' || *at > '9')
            return false;
        sum = sum * 10 + (*at - '0');
    }
    *number = sum;
    return true;
}
