/* PTX text to tokens. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_parse.h"

static int starts_word(char c)
{
    return isalpha((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

static int continues_word(const char *at)
{
    return isalnum((unsigned char)*at) || *at == '_' || *at == '$' || *at == '.';
}

static void skip_comment(struct ptx_parser *p)
{
    const char *end = strstr(p->at + 2, "*/");
    if (!end) ptx_module_fail(p, p->line, "comment without an end");
    for (; p->at < end; p->at++)
        if (*p->at == '\n') p->line++;
    p->at = end + 2;
}

static void skip_space(struct ptx_parser *p)
{
    for (;;) {
        if (*p->at == '\n') p->line++;
        if (isspace((unsigned char)*p->at))
            p->at++;
        else if (p->at[0] == '/' && p->at[1] == '/')
            p->at += strcspn(p->at, "\n");
        else if (p->at[0] == '/' && p->at[1] == '*')
            skip_comment(p);
        else
            return;
    }
}

/* A directive ends at the next dot (".reg.b32" is two), an opcode takes its modifiers along. */
static void read_word(struct ptx_parser *p)
{
    int directive = *p->at == '.';
    p->token.kind = TOKEN_WORD;
    p->at++;
    for (;;) {
        if (continues_word(p->at) && !(directive && *p->at == '.'))
            p->at++;
        else if (p->at[0] == ':' && p->at[1] == ':')
            p->at += 2;
        else
            return;
    }
}

/* 0f3F800000 or 0d3FF0000000000000 */
static void read_float_bits(struct ptx_parser *p)
{
    unsigned digits = tolower((unsigned char)p->at[1]) == 'f' ? 8 : 16;
    char text[17] = {0};
    p->at += 2;
    for (unsigned i = 0; i < digits; i++) {
        if (!isxdigit((unsigned char)*p->at))
            ptx_module_fail(p, p->line, "a float of %u hexadecimal digits is due", digits);
        text[i] = *p->at++;
    }
    p->token.kind = TOKEN_FLOAT;
    p->token.size = (uint8_t)(digits / 2);
    p->token.bits = strtoull(text, NULL, 16);
}

static void read_number(struct ptx_parser *p)
{
    char *end, *decimal;
    char second = (char)tolower((unsigned char)p->at[1]);
    if (*p->at == '0' && (second == 'f' || second == 'd')) {
        read_float_bits(p);
        return;
    }
    int binary = *p->at == '0' && second == 'b';
    p->token.kind = TOKEN_INTEGER;
    p->token.bits = binary ? strtoull(p->at + 2, &end, 2) : strtoull(p->at, &end, 0);
    if (!binary && second != 'x') {
        double value = strtod(p->at, &decimal);
        if (decimal > end) {
            p->token.kind = TOKEN_FLOAT;
            p->token.size = 0;
            memcpy(&p->token.bits, &value, 8);
            end = decimal;
        }
    }
    p->at = end;
    if (p->token.kind == TOKEN_INTEGER && (*p->at == 'U' || *p->at == 'u')) p->at++;
    if (continues_word(p->at)) ptx_module_fail(p, p->line, "bad number");
}

static void read_string(struct ptx_parser *p)
{
    p->token.kind = TOKEN_STRING;
    p->at++;
    p->at += strcspn(p->at, "\"\n");
    if (*p->at != '"') ptx_module_fail(p, p->line, "string without an end");
    p->at++;
}

void ptx_lex_next(struct ptx_parser *p)
{
    skip_space(p);
    p->token = (struct ptx_token){.at = p->at, .line = p->line};
    if (!*p->at) {
        p->token.kind = TOKEN_END;
    } else if (isdigit((unsigned char)*p->at)) {
        read_number(p);
    } else if (starts_word(*p->at)) {
        read_word(p);
    } else if (*p->at == '"') {
        read_string(p);
    } else {
        p->token.kind = TOKEN_PUNCT;
        p->at++;
    }
    p->token.length = (size_t)(p->at - p->token.at);
}

int ptx_lex_is(const struct ptx_parser *p, const char *text)
{
    return (p->token.kind == TOKEN_WORD || p->token.kind == TOKEN_PUNCT) &&
           p->token.length == strlen(text) && !memcmp(p->token.at, text, p->token.length);
}

int ptx_lex_take(struct ptx_parser *p, const char *text)
{
    if (!ptx_lex_is(p, text)) return 0;
    ptx_lex_next(p);
    return 1;
}

void ptx_lex_expect(struct ptx_parser *p, const char *text)
{
    if (ptx_lex_take(p, text)) return;
    if (p->token.kind == TOKEN_END)
        ptx_module_fail(p, p->token.line, "'%s' is due, not the end of the text", text);
    ptx_module_fail(p, p->token.line, "'%s' is due before '%.*s'", text, (int)p->token.length,
                    p->token.at);
}

uint64_t ptx_lex_integer(struct ptx_parser *p)
{
    uint64_t value = p->token.bits;
    if (p->token.kind != TOKEN_INTEGER)
        ptx_module_fail(p, p->token.line, "a number is due before '%.*s'", (int)p->token.length,
                        p->token.at);
    ptx_lex_next(p);
    return value;
}

struct ptx_token ptx_lex_name(struct ptx_parser *p)
{
    struct ptx_token name = p->token;
    if (name.kind != TOKEN_WORD || *name.at == '.')
        ptx_module_fail(p, name.line, "a name is due before '%.*s'", (int)name.length, name.at);
    ptx_lex_next(p);
    return name;
}
