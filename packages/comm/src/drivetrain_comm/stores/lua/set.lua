for i = 2, #ARGV, 2 do
  redis.call('HSET', data, ARGV[i], ARGV[i + 1])
  written(ARGV[i])
end
