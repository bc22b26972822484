/* image.h: what a program hands to the driver as code.
 *
 * A text of PTX may be shorter than the number that begins the other kinds, and nothing need be mapped behind it, so the
 * two are compared as texts are: to the first byte that differs. None of the numbers has a byte that is 0.
 */
#ifndef ALIQUOT_IMAGE_H
#define ALIQUOT_IMAGE_H

#include <elf.h>
#include <stdbool.h>
#include <string.h>

#define FATBIN_WRAPPER "\xb1\x43\x62\x46" /* points to a fat binary, 8 bytes on */
#define FATBIN "\x50\xed\x55\xba"

static inline bool image_begins(const char *image, const char *number) { return strncmp(image, number, SELFMAG) == 0; }

#endif
