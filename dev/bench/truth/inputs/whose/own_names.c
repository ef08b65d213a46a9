/* Functions of the program with names of libraries' functions, and of wrappers that they are not. */
#include "h.h"
#define NI __attribute__((noinline))
static void *kept[8];
NI void thread_start(void) { MB(4) KEEP(malloc(1024)); }
NI void palloc_report(void) { MB(4) KEEP(malloc(1024)); }
NI void xmlNewInvoice(void) { MB(4) KEEP(malloc(1024)); }
NI void g_list_of_orders(void) { MB(4) KEEP(malloc(1024)); }
NI void talloc_sheet(void) { MB(4) KEEP(malloc(1024)); }
NI void sqlite3_backup_all(void) { MB(4) KEEP(malloc(1024)); }
NI void PyObject_registry(void) { MB(4) KEEP(malloc(1024)); }
NI void *session_new(void) { char *p = malloc(1024); if (p) { p[0] = 1; kept[0] = p; } return p; }
NI void open_session(void) { MB(4) KEEP(session_new()); }
NI char *add_member(size_t n) { char *p = malloc(n); if (p) p[0] = 1; return p; }
NI void enroll(void) { MB(4) KEEP(add_member(1024)); }
int main(void) { enroll(); thread_start(); palloc_report(); xmlNewInvoice(); g_list_of_orders(); talloc_sheet();
  sqlite3_backup_all(); PyObject_registry(); open_session(); ready(); }
