// Starts all parts of the page of a file.

startTree();
startBytes();
showFile(0);
startTreemap();
startTensors();
startDetails();
startMetadata();
if (data.vocabulary) startTokens();
