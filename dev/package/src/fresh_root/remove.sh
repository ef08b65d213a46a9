apt-get purge -qq -y 'memprof*' > /dev/null
if command -v memprof; then exit 1; fi
