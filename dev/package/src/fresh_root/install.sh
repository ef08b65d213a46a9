apt-get install -qq -y /packages/*.deb > /dev/null
memprof --version
test -x /usr/lib/memprof/memory_profile.so
man --where memprof | grep -x '/usr/share/man/man1/memprof.1.gz'
man memprof-attach | grep -q 'memprof attach'
completed=$(bash -c 'source /usr/share/bash-completion/completions/memprof
    COMP_WORDS=(memprof activ) COMP_CWORD=1 COMP_TYPE=9
    _clap_complete_memprof memprof activ memprof
    echo "${COMPREPLY[*]}"')
test "$completed" = activate
fish -c 'complete -C "memprof activ"' | grep -q activate
zsh -fc 'autoload -Uz compinit; compinit -u -d /tmp/zcompdump; echo ${_comps[memprof]}' | grep -q memprof
