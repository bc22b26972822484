/* conf_path.c: the slot that names the tenant's configuration, which the injector patches into each tenant's copy of our
 * libraries.
 */
#include "base/base.h"

/* The injector looks for the first thirteen bytes; the size is part of the contract. */
static const volatile char slot[PATH_BYTES] = "ALIQUOT-CONF:/etc/aliquot/tenant.conf";

void conf_path(char path[PATH_BYTES])
{
    for (size_t i = 13; i < sizeof slot; i++)
        path[i - 13] = slot[i];
    path[PATH_BYTES - 13] = 0;
}
