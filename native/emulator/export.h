/* export.h: the tables that cuGetExportTable hands out.
 *
 * A table is an array of pointers. Most begin with their own size in bytes, which takes the place of entry 0; a table
 * without a size ends with a null pointer. What is known of them comes from published sources, named in
 * docs/decisions/0022-cuda-runtime-programs.md; an entry that no source describes answers NOT_SUPPORTED and is counted and
 * written to the log.
 */
#ifndef EMU_EXPORT_H
#define EMU_EXPORT_H
#include "emu.h"

#define EXPORT_ENTRIES 96
typedef struct {
    int slot;
    const void *fn;
} emu_entry;
typedef struct {
    const char *id;         /* the UUID as text */
    int count;              /* entries, the size included; 0: no size, and the table ends after the last known entry */
    const emu_entry *known; /* ends with fn == NULL */
    const void *words[EXPORT_ENTRIES];
} emu_table;

#define EXPORT_RUNTIME "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9"
#define EXPORT_INTEGRITY "d4082055-bde6-704b-8d34-ba123c66e1f2"

const void *const *emu_export(const char *id);
extern const emu_entry emu_values_entries[];    /* values.c */
extern const emu_entry emu_library_entries[];   /* liblog.c */
extern const emu_entry emu_integrity_entries[]; /* integrity.c */
/* values.c: the context ends, and the owner of each value kept in it is called. */
void emu_values_end(CUcontext c);
#endif
