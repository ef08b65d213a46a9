// Sends a message through the library in the first argument.
const [path, ...message] = process.argv.slice(2);
const memoryProfile = { exports: {} };
process.dlopen(memoryProfile, path);

memoryProfile.exports.sendAsync(message.join(" ")).then(
  (reply) => console.log(reply),
  (error) => {
    console.error(error.message);
    process.exitCode = 1;
  },
);
