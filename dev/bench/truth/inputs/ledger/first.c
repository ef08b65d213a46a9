#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>
#include <signal.h>
__attribute__((noinline)) void *first_thing(size_t n){ char *p=malloc(n); memset(p,1,n); return p; }
void *keep[30];
int main(int c, char**v){ for(int i=0;i<26;i++) keep[i]=first_thing(1<<20); if(c>1) return 0; printf("ready %d\n",getpid()); fflush(stdout); char b; while(read(0,&b,1)>0); return keep[0]==0; }
